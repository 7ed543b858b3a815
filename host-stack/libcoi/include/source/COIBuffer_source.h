/* Buffers: memory that the host and processes on cards have copies of, and that COI keeps the same.
 *
 * For every byte COI knows where it is valid: on the source, on a process, on several. A buffer is valid on the source
 * when it is made (one with COI_SINK_MEMORY on its process), and then
 *     COIBufferMap, READ_ONLY             valid on the source too
 *     COIBufferMap, the others            valid on the source only
 *     a run function, COI_SINK_READ       valid on its process too
 *     a run function, the others          valid on its process only
 *     COIBufferWrite, COIBufferCopy to it valid only where it was written: on the source if it is valid there, else on the
 *                                         first process where it is, or where the call says
 * Writing, reading and copying do not wait for run functions that use the buffer; mapping and COIBufferSetState do.
 *
 * Dependencies and completion events are the same everywhere (COIEvent_source.h): COI_ARGUMENT_MISMATCH for a number
 * without an array or an array without a number. COI_INVALID_HANDLE is for what is no handle, or not any more.
 */
#ifndef _COIBUFFER_SOURCE_H
#define _COIBUFFER_SOURCE_H

#include "../common/COIResult_common.h"
#include "../common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum COI_BUFFER_TYPE {
    COI_BUFFER_NORMAL = 1,
    COI_BUFFER_RESERVED_1 = 2,
    COI_BUFFER_RESERVED_2 = 3,
    COI_BUFFER_RESERVED_3 = 4,
    /* What these three were called up to MPSS 3.2, whose programs use them. The streaming types are as NORMAL: each use
       has the data of its time, though maps wait for earlier uses. PINNED is as OPENCL: never waits. What is written
       through a map of it gets to the cards when it is unmapped. */
    COI_BUFFER_STREAMING_TO_SINK = COI_BUFFER_RESERVED_1,
    COI_BUFFER_STREAMING_TO_SOURCE = COI_BUFFER_RESERVED_2,
    COI_BUFFER_PINNED = COI_BUFFER_RESERVED_3,
    /* Waits for nobody: may be used while it is mapped, and by several at once. It can have sub-buffers. */
    COI_BUFFER_OPENCL = 5
} COI_BUFFER_TYPE;

/* The buffer has the same address in all its processes. */
#define COI_SAME_ADDRESS_SINKS 0x00000001
/* And in the caller's. */
#define COI_SAME_ADDRESS_SINKS_AND_SOURCE 0x00000002
/* Hints. */
#define COI_OPTIMIZE_SOURCE_READ 0x00000004
#define COI_OPTIMIZE_SOURCE_WRITE 0x00000008
#define COI_OPTIMIZE_SINK_READ 0x00000010
#define COI_OPTIMIZE_SINK_WRITE 0x00000020
#define COI_OPTIMIZE_NO_DMA 0x00000040
#define COI_OPTIMIZE_HUGE_PAGE_SIZE 0x00000080
/* The memory is the process's on the card; only for COIBufferCreateFromMemory. */
#define COI_SINK_MEMORY 0x00000100

/* Flags that go with a type, as a mask. */
static const uint64_t COI_VALID_BUFFER_TYPES_AND_FLAGS[COI_BUFFER_OPENCL + 1] __attribute__((unused)) = {
    0, 0x1ff /* NORMAL */, 0x038 /* TO_SINK */, 0x024 /* TO_SOURCE */, 0x03f /* PINNED */, 0x0ff /* OPENCL */
};

typedef enum COI_MAP_TYPE {
    COI_MAP_READ_WRITE = 1,
    COI_MAP_READ_ONLY = 2,
    COI_MAP_WRITE_ENTIRE_BUFFER = 3 /* what was in it is not brought */
} COI_MAP_TYPE;

/* Ways of mapping that go with a type. */
static const uint64_t COI_VALID_BUFFER_TYPES_AND_MAP[COI_BUFFER_OPENCL + 1]
                                                    [COI_MAP_WRITE_ENTIRE_BUFFER + 1] __attribute__((unused)) = {
    {0, 0, 0, 0},               {0, 1, 1, 1} /* NORMAL */, {0, 0, 0, 1} /* TO_SINK */, {0, 0, 1, 0} /* TO_SOURCE */,
    {0, 1, 1, 1} /* PINNED */, {0, 1, 1, 1} /* OPENCL */
};

/* How to copy: a hint; and with MOVE_ENTIRE, the Ex calls bring the whole buffer to the process that they are told. */
typedef enum COI_COPY_TYPE {
    COI_COPY_UNSPECIFIED = 0,
    COI_COPY_USE_DMA = 1,
    COI_COPY_USE_CPU = 2,
    COI_COPY_UNSPECIFIED_MOVE_ENTIRE = 3,
    COI_COPY_USE_DMA_MOVE_ENTIRE = 4,
    COI_COPY_USE_CPU_MOVE_ENTIRE = 5
} COI_COPY_TYPE;

/* What a buffer is on a process. */
typedef enum {
    COI_BUFFER_VALID = 0,
    COI_BUFFER_INVALID = 1,
    COI_BUFFER_VALID_MAY_DROP = 2, /* right, but need not be kept: it is COI_BUFFER_VALID elsewhere */
    COI_BUFFER_RESERVED = 3
} COI_BUFFER_STATE;

/* Whether the data is moved when the state changes. */
typedef enum { COI_BUFFER_MOVE = 0, COI_BUFFER_NO_MOVE = 1 } COI_BUFFER_MOVE_FLAG;

/* Stands for all processes where a buffer is valid (COIBufferSetState). */
#define COI_SINK_OWNERS ((COIPROCESS)-2)

/* One dimension of an array: its elements from lower to upper, every stride-th. */
typedef struct dim_desc {
    int64_t size;   /* bytes from one index to the next */
    int64_t lindex; /* the first index that there is */
    int64_t lower;
    int64_t upper;
    int64_t stride;
} dim_desc;

/* An array of up to three dimensions, the outermost first. */
typedef struct arr_desc {
    int64_t base; /* its address in the caller's memory */
    int64_t rank;
    dim_desc dim[3];
} arr_desc;

/* Makes a buffer for these processes, with what is at in_pInitData unless that is NULL.
   COI_NOT_SUPPORTED: a type that is none, COI_SINK_MEMORY, huge pages at the same address; COI_OUT_OF_RANGE: no bytes,
   no processes, flags that are none; COI_INVALID_POINTER; COI_ARGUMENT_MISMATCH: flags that are not for the type;
   COI_INVALID_HANDLE: a process; COI_OUT_OF_MEMORY; COI_RESOURCE_EXHAUSTED: no memory on the card. */
COIACCESSAPI
COIRESULT COIBufferCreate(uint64_t in_Size, COI_BUFFER_TYPE in_Type, uint32_t in_Flags, const void *in_pInitData,
                          uint32_t in_NumProcesses, const COIPROCESS *in_pProcesses, COIBUFFER *out_pBuffer);

/* Makes a buffer of memory that there is: of the caller, or with COI_SINK_MEMORY of the one process. It stays where it
   is until the buffer is destroyed, and is touched only as a mapped buffer is.
   COI_OUT_OF_RANGE, COI_INVALID_POINTER, COI_INVALID_HANDLE as above; COI_NOT_SUPPORTED: a type that is none, memory
   that cannot be written, COI_SINK_MEMORY for another type than COI_BUFFER_NORMAL, the same address;
   COI_ARGUMENT_MISMATCH: flags that are not for the type, or not for COI_SINK_MEMORY, or that for several processes. */
COIACCESSAPI
COIRESULT COIBufferCreateFromMemory(uint64_t in_Size, COI_BUFFER_TYPE in_Type, uint32_t in_Flags, void *in_Memory,
                                    uint32_t in_NumProcesses, const COIPROCESS *in_pProcesses, COIBUFFER *out_pBuffer);

/* Takes a buffer away, after all operations on it and when no process has a reference any more.
   COI_INVALID_HANDLE; COI_RETRY: it is mapped, or has sub-buffers. */
COIACCESSAPI
COIRESULT COIBufferDestroy(COIBUFFER in_Buffer);

/* Makes a part of a buffer accessible: at *out_ppData, from when out_pCompletion is signalled until *out_pMapInstance
   is unmapped. A length of 0 at offset 0 is all of it.
   COI_INVALID_HANDLE; COI_ARGUMENT_MISMATCH; COI_INVALID_POINTER; COI_OUT_OF_RANGE: more than there is, a length of 0
   elsewhere, a type that is none. */
COIACCESSAPI
COIRESULT COIBufferMap(COIBUFFER in_Buffer, uint64_t in_Offset, uint64_t in_Length, COI_MAP_TYPE in_Type,
                       uint32_t in_NumDependencies, const COIEVENT *in_pDependencies, COIEVENT *out_pCompletion,
                       COIMAPINSTANCE *out_pMapInstance, void **out_ppData);

/* Ends that. COI_ARGUMENT_MISMATCH; COI_INVALID_HANDLE. */
COIACCESSAPI
COIRESULT COIBufferUnmap(COIMAPINSTANCE in_MapInstance, uint32_t in_NumDependencies, const COIEVENT *in_pDependencies,
                         COIEVENT *out_pCompletion);

/* The buffer's address in its first process: there a run function gets it, always the same.
   COI_INVALID_HANDLE; COI_INVALID_POINTER. */
COIACCESSAPI
COIRESULT COIBufferGetSinkAddress(COIBUFFER in_Buffer, uint64_t *out_pAddress);

/* The same in a process; NULL: its first. COI_INVALID_POINTER; COI_INVALID_HANDLE; COI_OUT_OF_RANGE: it is not one of
   the buffer's. */
COIACCESSAPI
COIRESULT COIBufferGetSinkAddressEx(COIPROCESS in_Process, COIBUFFER in_Buffer, uint64_t *out_pAddress);

/* Writes to a buffer, on in_DestProcess (NULL: where it is valid); there only it is valid then.
   COI_INVALID_HANDLE; COI_INVALID_POINTER: no data; COI_OUT_OF_RANGE: no length, or more than there is;
   COI_ARGUMENT_MISMATCH; COI_RETRY: it is mapped, and not COI_BUFFER_OPENCL. */
COIACCESSAPI
COIRESULT COIBufferWriteEx(COIBUFFER in_DestBuffer, const COIPROCESS in_DestProcess, uint64_t in_Offset,
                           const void *in_pSourceData, uint64_t in_Length, COI_COPY_TYPE in_Type,
                           uint32_t in_NumDependencies, const COIEVENT *in_pDependencies, COIEVENT *out_pCompletion);

/* Writes the elements of one array to those of another, in a buffer from in_Offset on. There are as many in both.
   As above; COI_NOT_SUPPORTED: more than three dimensions, or none; COI_INVALID_POINTER: no base; COI_OUT_OF_RANGE:
   not as many elements, indices that make no sense, or more than the buffer has. */
COIACCESSAPI
COIRESULT COIBufferWriteMultiD(COIBUFFER in_DestBuffer, const COIPROCESS in_DestProcess, uint64_t in_Offset,
                               struct arr_desc *in_DestArray, struct arr_desc *in_SrcArray, COI_COPY_TYPE in_Type,
                               uint32_t in_NumDependencies, const COIEVENT *in_pDependencies,
                               COIEVENT *out_pCompletion);

/* The other way round. */
COIACCESSAPI
COIRESULT COIBufferReadMultiD(COIBUFFER in_SourceBuffer, uint64_t in_Offset, struct arr_desc *in_DestArray,
                              struct arr_desc *in_SrcArray, COI_COPY_TYPE in_Type, uint32_t in_NumDependencies,
                              const COIEVENT *in_pDependencies, COIEVENT *out_pCompletion);

/* COIBufferWriteEx with no process. */
COIACCESSAPI
COIRESULT COIBufferWrite(COIBUFFER in_DestBuffer, uint64_t in_Offset, const void *in_pSourceData, uint64_t in_Length,
                         COI_COPY_TYPE in_Type, uint32_t in_NumDependencies, const COIEVENT *in_pDependencies,
                         COIEVENT *out_pCompletion);

/* Reads from a buffer, where it is valid. Errors as for writing. */
COIACCESSAPI
COIRESULT COIBufferRead(COIBUFFER in_SourceBuffer, uint64_t in_Offset, void *in_pDestData, uint64_t in_Length,
                        COI_COPY_TYPE in_Type, uint32_t in_NumDependencies, const COIEVENT *in_pDependencies,
                        COIEVENT *out_pCompletion);

/* Copies from a buffer to a buffer, on in_DestProcess (NULL: where it is valid). A length of 0 is the destination's.
   COI_INVALID_HANDLE; COI_ARGUMENT_MISMATCH; COI_OUT_OF_RANGE; COI_MEMORY_OVERLAP: onto itself; COI_RETRY: one is
   mapped, and not COI_BUFFER_OPENCL. */
COIACCESSAPI
COIRESULT COIBufferCopyEx(COIBUFFER in_DestBuffer, const COIPROCESS in_DestProcess, COIBUFFER in_SourceBuffer,
                          uint64_t in_DestOffset, uint64_t in_SourceOffset, uint64_t in_Length, COI_COPY_TYPE in_Type,
                          uint32_t in_NumDependencies, const COIEVENT *in_pDependencies, COIEVENT *out_pCompletion);

/* COIBufferCopyEx with no process. */
COIACCESSAPI
COIRESULT COIBufferCopy(COIBUFFER in_DestBuffer, COIBUFFER in_SourceBuffer, uint64_t in_DestOffset,
                        uint64_t in_SourceOffset, uint64_t in_Length, COI_COPY_TYPE in_Type,
                        uint32_t in_NumDependencies, const COIEVENT *in_pDependencies, COIEVENT *out_pCompletion);

/* Says what a buffer is on a process (COI_PROCESS_SOURCE: here; COI_SINK_OWNERS: on all where it is valid), and brings
   the data there with COI_BUFFER_MOVE. A change that makes no sense changes nothing.
   COI_ARGUMENT_MISMATCH: dependencies, COI_BUFFER_VALID_MAY_DROP on the source, COI_BUFFER_MOVE to COI_SINK_OWNERS;
   COI_INVALID_HANDLE; COI_MISSING_DEPENDENCY: the process is not one of the buffer's. */
COIACCESSAPI
COIRESULT COIBufferSetState(COIBUFFER in_Buffer, COIPROCESS in_Process, COI_BUFFER_STATE in_State,
                            COI_BUFFER_MOVE_FLAG in_DataMove, uint32_t in_NumDependencies,
                            const COIEVENT *in_pDependencies, COIEVENT *out_pCompletion);

/* A part of a buffer as a buffer of its own: used for it, the rest is not touched. It can have no sub-buffers.
   COI_INVALID_HANDLE; COI_NOT_SUPPORTED: it is not COI_BUFFER_OPENCL; COI_OUT_OF_RANGE: no length, or more than there
   is; COI_INVALID_POINTER; COI_OUT_OF_MEMORY. */
COIACCESSAPI
COIRESULT COIBufferCreateSubBuffer(COIBUFFER in_Buffer, uint64_t in_Length, uint64_t in_Offset,
                                   COIBUFFER *out_pSubBuffer);

/* Gives back so many of a process's references to a buffer. COI_INVALID_HANDLE; COI_ERROR for none;
   COI_OUT_OF_RANGE if it has not so many. */
COIACCESSAPI
COIRESULT COIBufferReleaseRefcnt(COIPROCESS in_Process, COIBUFFER in_Buffer, uint64_t in_ReleaseRefcnt);

/* Gives a process so many references to a buffer: it stays there until they are given back.
   COI_INVALID_HANDLE; COI_NOT_INITIALIZED if it is not COI_BUFFER_VALID there; COI_ERROR for none. */
COIACCESSAPI
COIRESULT COIBufferAddRefcnt(COIPROCESS in_Process, COIBUFFER in_Buffer, uint64_t in_AddRefcnt);

#ifdef __cplusplus
}
#endif

#endif
