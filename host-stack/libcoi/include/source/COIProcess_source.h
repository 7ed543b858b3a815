/* Processes on cards: their programs, libraries and functions, and what they tell.
 *
 * Loading libraries has two versions: programs that say -DCOI_LIBRARY_VERSION=2 (or more) pass flags for dlopen(3).
 */
#ifndef _COIPROCESS_SOURCE_H
#define _COIPROCESS_SOURCE_H

#include "../common/COIResult_common.h"
#include "../common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stands for the caller's own process where a process is asked for. */
#define COI_PROCESS_SOURCE ((COIPROCESS)-1)

#define COI_MAX_FILE_NAME_LENGTH 256

/* As in_FileOfOriginOffset: the file holds more than the program, at an offset that is nobody's business. */
#define COI_FAT_BINARY ((uint64_t)-1)

/* Starts the program of a file on a card, as COIProcessCreateFromMemory does.
   COI_INVALID_POINTER for no name; COI_DOES_NOT_EXIST; COI_INVALID_FILE for an empty one, or one that is no regular
   file. */
COIACCESSAPI
COIRESULT COIProcessCreateFromFile(COIENGINE in_Engine, const char *in_pBinaryName, int in_Argc, const char **in_ppArgv,
                                   uint8_t in_DupEnv, const char **in_ppAdditionalEnv, uint8_t in_ProxyActive,
                                   const char *in_Reserved, uint64_t in_InitialBufferSpace,
                                   const char *in_LibrarySearchPath, COIPROCESS *out_pProcess);

/* Starts a program on a card, with the libraries that it needs.
     in_pBinaryName         its name; without directories, it is argv[0]
     in_ppArgv              argv[1] and so on
     in_DupEnv              it gets the caller's environment
     in_ppAdditionalEnv     NAME=value, up to a NULL; instead of what the caller's environment says
     in_ProxyActive         its standard output and error are the caller's
     in_InitialBufferSpace  bytes that are set aside for buffers
     in_LibrarySearchPath   where its libraries are, directories with colons between; NULL: SINK_LD_LIBRARY_PATH
     in_FileOfOrigin        the file that it comes from, at in_FileOfOriginOffset; or NULL
   Environment: SINK_LD_PRELOAD names libraries to bring along and load first; if SINK_LD_TRACE_LOADED_OBJECTS is not
   empty, libraries are looked for, and nothing is started: COI_NOT_INITIALIZED. COI_HOST_THREAD_AFFINITY is a list of
   processors for the library's own threads.
   COI_INVALID_HANDLE; COI_INVALID_POINTER for no name, program or place; COI_OUT_OF_RANGE: a name of 256 characters or
   more, in_Argc < 0, no bytes, a file of origin that is too short; COI_ARGUMENT_MISMATCH: arguments without their
   number, or the other way round, an offset without a file of origin; COI_DOES_NOT_EXIST, COI_INVALID_FILE: the file
   of origin, or a program that is none; COI_MISSING_DEPENDENCY: a library; COI_BINARY_AND_HARDWARE_MISMATCH;
   COI_RESOURCE_EXHAUSTED; COI_TIME_OUT_REACHED; COI_PROCESS_DIED; COI_VERSION_MISMATCH. */
COIACCESSAPI
COIRESULT COIProcessCreateFromMemory(COIENGINE in_Engine, const char *in_pBinaryName, const void *in_pBinaryBuffer,
                                     uint64_t in_BinaryBufferLength, int in_Argc, const char **in_ppArgv,
                                     uint8_t in_DupEnv, const char **in_ppAdditionalEnv, uint8_t in_ProxyActive,
                                     const char *in_Reserved, uint64_t in_InitialBufferSpace,
                                     const char *in_LibrarySearchPath, const char *in_FileOfOrigin,
                                     uint64_t in_FileOfOriginOffset, COIPROCESS *out_pProcess);

/* Ends a process: asks its main to return (COIProcessWaitForShutdown) and waits so many milliseconds, -1 for ever;
   with in_ForceDestroy it is killed then. A timeout of 0 asks nothing: it kills at once, or looks whether the process
   has ended. What main returned and, of a process that did not end by itself, the number of the signal (else 0) are
   left where the last two point.
   COI_OUT_OF_RANGE: a timeout below -1. COI_ARGUMENT_MISMATCH: -1 and in_ForceDestroy. COI_INVALID_HANDLE.
   COI_TIME_OUT_REACHED: it runs, and can be asked again. */
COIACCESSAPI
COIRESULT COIProcessDestroy(COIPROCESS in_Process, int32_t in_WaitForMainTimeout, uint8_t in_ForceDestroy,
                            int8_t *out_pProcessReturn, uint32_t *out_pTerminationCode);

#define COI_MAX_FUNCTION_NAME_LENGTH 256

/* Functions of the process by name: of its program, if that was linked with -rdynamic, and of its libraries.
   COI_DOES_NOT_EXIST: some are not there; theirs are NULL, and the others right. COI_INVALID_HANDLE;
   COI_INVALID_POINTER; COI_OUT_OF_RANGE: no names, or one of 256 characters or more. */
COIACCESSAPI
COIRESULT COIProcessGetFunctionHandles(COIPROCESS in_Process, uint32_t in_NumFunctions,
                                       const char **in_ppFunctionNameArray, COIFUNCTION *out_pFunctionHandleArray);

#if COI_LIBRARY_VERSION >= 2
/* dlopen(3)'s flags. */
#define COI_LOADLIBRARY_LOCAL 0x00000
#define COI_LOADLIBRARY_GLOBAL 0x00100
#define COI_LOADLIBRARY_LAZY 0x00001
#define COI_LOADLIBRARY_NOW 0x00002
#define COI_LOADLIBRARY_NOLOAD 0x00004
#define COI_LOADLIBRARY_DEEPBIND 0x00008
#define COI_LOADLIBRARY_NODELETE 0x01000
/* What the first version does. */
#define COI_LOADLIBRARY_V1_FLAGS (COI_LOADLIBRARY_GLOBAL | COI_LOADLIBRARY_NOW)
#endif

/* Loads a library into a process, with those that it needs and that the process has not. in_pLibraryName, without its
   directories, is its name there; NULL: its DT_SONAME. The rest as in COIProcessCreateFromMemory.
   COI_INVALID_HANDLE; COI_OUT_OF_RANGE for no bytes; COI_INVALID_POINTER; COI_INVALID_FILE if it is no library;
   COI_BINARY_AND_HARDWARE_MISMATCH; COI_ARGUMENT_MISMATCH: it has no name, its name is that of a library that it
   needs, or an offset without a file of origin; COI_DOES_NOT_EXIST, COI_INVALID_FILE, COI_OUT_OF_RANGE: the file of
   origin; COI_ALREADY_EXISTS: a library of this name is loaded, and its handle is returned; COI_MISSING_DEPENDENCY;
   COI_UNDEFINED_SYMBOL; COI_PROCESS_DIED. */
#if COI_LIBRARY_VERSION >= 2
COIACCESSAPI
COIRESULT COIProcessLoadLibraryFromMemory(COIPROCESS in_Process, const void *in_pLibraryBuffer,
                                          uint64_t in_LibraryBufferLength, const char *in_pLibraryName,
                                          const char *in_LibrarySearchPath, const char *in_FileOfOrigin,
                                          uint64_t in_FileOfOriginOffset, uint32_t in_Flags, COILIBRARY *out_pLibrary);
__asm__(".symver COIProcessLoadLibraryFromMemory, COIProcessLoadLibraryFromMemory@COI_2.0");
#else
COIRESULT COIProcessLoadLibraryFromMemory(COIPROCESS in_Process, const void *in_pLibraryBuffer,
                                          uint64_t in_LibraryBufferLength, const char *in_pLibraryName,
                                          const char *in_LibrarySearchPath, const char *in_FileOfOrigin,
                                          uint64_t in_FileOfOriginOffset, COILIBRARY *out_pLibrary);
__asm__(".symver COIProcessLoadLibraryFromMemory, COIProcessLoadLibraryFromMemory@COI_1.0");
#endif

/* The same for a file; if its name has no directory, it is looked for where libraries are.
   COI_INVALID_POINTER; COI_DOES_NOT_EXIST; COI_INVALID_FILE; and as above. */
#if COI_LIBRARY_VERSION >= 2
COIACCESSAPI
COIRESULT COIProcessLoadLibraryFromFile(COIPROCESS in_Process, const char *in_pFileName, const char *in_pLibraryName,
                                        const char *in_LibrarySearchPath, uint32_t in_Flags, COILIBRARY *out_pLibrary);
__asm__(".symver COIProcessLoadLibraryFromFile, COIProcessLoadLibraryFromFile@COI_2.0");
#else
COIRESULT COIProcessLoadLibraryFromFile(COIPROCESS in_Process, const char *in_pFileName, const char *in_pLibraryName,
                                        const char *in_LibrarySearchPath, COILIBRARY *out_pLibrary);
__asm__(".symver COIProcessLoadLibraryFromFile, COIProcessLoadLibraryFromFile@COI_1.0");
#endif

/* dlclose(3) for it. COI_INVALID_HANDLE: the process or the library. */
COIACCESSAPI
COIRESULT COIProcessUnloadLibrary(COIPROCESS in_Process, COILIBRARY in_Library);

/* Libraries in the caller's memory, which satisfy the needs of programs and libraries from now on, whatever files there
   are. All of them, or none, are taken. The memory stays as it is.
   COI_OUT_OF_RANGE: none, one of no bytes, or one that is no library with a DT_SONAME; COI_INVALID_POINTER;
   COI_ARGUMENT_MISMATCH: just one of the last two is NULL. */
COIACCESSAPI
COIRESULT COIProcessRegisterLibraries(uint32_t in_NumLibraries, const void **in_ppLibraryArray,
                                      const uint64_t *in_pLibrarySizeArray, const char **in_ppFileOfOriginArray,
                                      const uint64_t *in_pFileOfOriginOffSetArray);

/* What a process can be watched for. */
typedef enum COI_NOTIFICATIONS {
    RUN_FUNCTION_READY = 0,        /* all that it waited for is done */
    RUN_FUNCTION_START = 1,        /* it begins on the card */
    RUN_FUNCTION_COMPLETE = 2,     /* it returned */
    BUFFER_OPERATION_READY = 3,    /* as above; only of operations that move data */
    BUFFER_OPERATION_COMPLETE = 4,
    USER_EVENT_SIGNALED = 5        /* by the card; those of the source are told to COI_PROCESS_SOURCE */
} COI_NOTIFICATIONS;

/* Called for each of these, before the event is signalled. It should be short, and wait for nothing. */
typedef void (*COI_NOTIFICATION_CALLBACK)(COI_NOTIFICATIONS in_Type, COIPROCESS in_Process, COIEVENT in_Event,
                                          const void *in_UserData);

/* Has in_Callback called for a process. There may be several callbacks, each once.
   COI_INVALID_HANDLE; COI_INVALID_POINTER; COI_ALREADY_EXISTS. */
COIACCESSAPI
COIRESULT COIRegisterNotificationCallback(COIPROCESS in_Process, COI_NOTIFICATION_CALLBACK in_Callback,
                                          const void *in_UserData);

/* Not any more. COI_INVALID_HANDLE; COI_INVALID_POINTER; COI_DOES_NOT_EXIST. */
COIACCESSAPI
COIRESULT COIUnregisterNotificationCallback(COIPROCESS in_Process, COI_NOTIFICATION_CALLBACK in_Callback);

/* What callbacks get as in_UserData for all that the calling thread starts from now on, instead of what they were
   registered with. */
COIACCESSAPI
void COINotificationCallbackSetContext(const void *in_UserData);

/* How the memory for buffers on a card is had: one MODE and one ACTION. */
#define COI_CACHE_MODE_MASK 0x00000007
#define COI_CACHE_MODE_NOCHANGE 0x00000001
#define COI_CACHE_MODE_ONDEMAND_SYNC 0x00000002  /* when it is needed: what is usual */
#define COI_CACHE_MODE_ONDEMAND_ASYNC 0x00000004 /* never was */
#define COI_CACHE_ACTION_MASK 0x00070000
#define COI_CACHE_ACTION_NONE 0x00010000
#define COI_CACHE_ACTION_GROW_NOW 0x00020000    /* have it all now */
#define COI_CACHE_ACTION_FREE_UNUSED 0x00040000 /* never was */

/* How much memory for buffers a process on a card should keep: of huge pages and of small ones.
   COI_ARGUMENT_MISMATCH: dependencies; COI_INVALID_HANDLE; COI_NOT_SUPPORTED: flags that are none, or more than one of
   a sort; COI_RESOURCE_EXHAUSTED; COI_OUT_OF_RANGE; COI_PROCESS_DIED. */
COIACCESSAPI
COIRESULT COIProcessSetCacheSize(const COIPROCESS in_Process, const uint64_t in_HugePagePoolSize,
                                 const uint32_t in_HugeFlags, const uint64_t in_SmallPagePoolSize,
                                 const uint32_t in_SmallFlags, uint32_t in_NumDependencies,
                                 const COIEVENT *in_pDependencies, COIEVENT *out_pCompletion);

/* How transfers are spread over channels. */
typedef enum COI_DMA_MODE {
    COI_DMA_MODE_SINGLE = 0,      /* one for all */
    COI_DMA_MODE_READ_WRITE = 1,  /* one for each direction */
    COI_DMA_MODE_ROUND_ROBIN = 2, /* never was */
    COI_DMA_RESERVED
} COI_DMA_MODE;

/* How many channels, up to four, processes get that are made from now on, and in which mode. It is a hint.
   COI_NOT_SUPPORTED: more than four, or no mode; COI_ARGUMENT_MISMATCH: a number that is not for this mode. */
COIACCESSAPI
COIRESULT COIProcessConfigureDMA(const uint64_t in_Channels, const COI_DMA_MODE in_Mode);

#ifdef __cplusplus
}
#endif

#endif
