/* Pipelines: run functions of a process on a card, in order, one at a time. */
#ifndef _COIPIPELINE_SOURCE_H
#define _COIPIPELINE_SOURCE_H

#include "../common/COIResult_common.h"
#include "../common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a run function does with a buffer that it is given. The contents are brought to the card first, but for
   WRITE_ENTIRE. After a WRITE, only the card's copy is right. With ADDREF the card's process gets a reference, which
   outlives the run function until COIBufferReleaseRef on the card or COIBufferReleaseRefcnt here. */
typedef enum COI_ACCESS_FLAGS {
    COI_SINK_READ = 1,
    COI_SINK_WRITE = 2,
    COI_SINK_WRITE_ENTIRE = 3,
    COI_SINK_READ_ADDREF = 4,
    COI_SINK_WRITE_ADDREF = 5,
    COI_SINK_WRITE_ENTIRE_ADDREF = 6
} COI_ACCESS_FLAGS;

#define COI_PIPELINE_MAX_PIPELINES 512          /* of a process */
#define COI_PIPELINE_MAX_IN_BUFFERS 16384       /* of a run function */
#define COI_PIPELINE_MAX_IN_MISC_DATA_LEN 32768 /* bytes */

/* Makes a pipeline. in_Mask has the hardware threads that its thread on the card may run on, or is NULL;
   in_StackSize is the size of that thread's stack, or 0.
   COI_INVALID_HANDLE; COI_INVALID_POINTER; COI_RESOURCE_EXHAUSTED if there are too many; COI_OUT_OF_RANGE for a mask
   of no thread, or a stack below 16384 bytes or not of whole pages; COI_TIME_OUT_REACHED; COI_RETRY;
   COI_PROCESS_DIED. */
COIACCESSAPI
COIRESULT COIPipelineCreate(COIPROCESS in_Process, COI_CPU_MASK in_Mask, uint32_t in_StackSize,
                            COIPIPELINE *out_pPipeline);

/* Takes a pipeline away, once all its run functions have returned. COI_INVALID_HANDLE. */
COIACCESSAPI
COIRESULT COIPipelineDestroy(COIPIPELINE in_Pipeline);

/* Queues a run function: after the earlier ones of its pipeline, after the events that it depends on, and after
   operations under way on its buffers. Its return value is written to out_pAsyncReturnValue before out_pCompletion is
   signalled; see COIEvent_source.h for what that may be.
   COI_OUT_OF_RANGE: too many buffers, too much data, or an access flag that is none. COI_INVALID_HANDLE: the pipeline,
   the function or a buffer. COI_ARGUMENT_MISMATCH: a number without its array, an array without its number; so the
   data and the return value. COI_RETRY: a buffer is mapped. COI_MISSING_DEPENDENCY: a buffer is not one of the
   pipeline's process. COI_PROCESS_DIED. */
COIACCESSAPI
COIRESULT COIPipelineRunFunction(COIPIPELINE in_Pipeline, COIFUNCTION in_Function, uint32_t in_NumBuffers,
                                 const COIBUFFER *in_pBuffers, const COI_ACCESS_FLAGS *in_pBufferAccessFlags,
                                 uint32_t in_NumDependencies, const COIEVENT *in_pDependencies,
                                 const void *in_pMiscData, uint16_t in_MiscDataLen, void *out_pAsyncReturnValue,
                                 uint16_t in_AsyncReturnValueLen, COIEVENT *out_pCompletion);

/* The engine of a pipeline. COI_INVALID_HANDLE; COI_INVALID_POINTER; COI_PROCESS_DIED. */
COIACCESSAPI
COIRESULT COIPipelineGetEngine(COIPIPELINE in_Pipeline, COIENGINE *out_pEngine);

/* Adds a hardware thread to a mask: of this core, and of the core's threads this one.
   COI_INVALID_POINTER; COI_INVALID_HANDLE; COI_OUT_OF_RANGE if the card does not have it. */
COIACCESSAPI
COIRESULT COIPipelineSetCPUMask(COIPROCESS in_Process, uint32_t in_CoreID, uint8_t in_ThreadID,
                                COI_CPU_MASK *out_pMask);

/* Empties a mask. COI_INVALID_POINTER. */
COIACCESSAPI
COIRESULT COIPipelineClearCPUMask(COI_CPU_MASK *in_Mask);

#ifdef __cplusplus
}
#endif

#endif
