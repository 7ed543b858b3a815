/* Results of COI, by the names and values of the public MPSS interface. */
#ifndef _COIRESULT_COMMON_H
#define _COIRESULT_COMMON_H

#include "../common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum COIRESULT {
    COI_SUCCESS = 0,
    COI_ERROR = 1,                         /* nothing more is known */
    COI_NOT_INITIALIZED = 2,               /* too early */
    COI_ALREADY_INITIALIZED = 3,           /* too late */
    COI_ALREADY_EXISTS = 4,
    COI_DOES_NOT_EXIST = 5,
    COI_INVALID_POINTER = 6,
    COI_OUT_OF_RANGE = 7,                  /* a value that is not allowed */
    COI_NOT_SUPPORTED = 8,                 /* not used like this */
    COI_TIME_OUT_REACHED = 9,
    COI_MEMORY_OVERLAP = 10,               /* a copy onto itself */
    COI_ARGUMENT_MISMATCH = 11,            /* arguments that do not go together */
    COI_SIZE_MISMATCH = 12,
    COI_OUT_OF_MEMORY = 13,
    COI_INVALID_HANDLE = 14,
    COI_RETRY = 15,                        /* not now */
    COI_RESOURCE_EXHAUSTED = 16,
    COI_ALREADY_LOCKED = 17,
    COI_NOT_LOCKED = 18,
    COI_MISSING_DEPENDENCY = 19,           /* a library, or a buffer's process, is missing */
    COI_UNDEFINED_SYMBOL = 20,             /* no library defines it */
    COI_PENDING = 21,                      /* not finished */
    COI_BINARY_AND_HARDWARE_MISMATCH = 22, /* a program for another machine */
    COI_PROCESS_DIED = 23,
    COI_INVALID_FILE = 24,                 /* not a file for this purpose */
    COI_EVENT_CANCELED = 25,               /* a user event that was unregistered */
    COI_VERSION_MISMATCH = 26,             /* host and card do not speak the same */
    COI_BAD_PORT = 27,
    COI_AUTHENTICATION_FAILURE = 28,
    COI_COMM_NOT_INITIALIZED = 29,
    COI_INCORRECT_FORMAT = 30,
    COI_NUM_RESULTS
} COIRESULT;

/* The name of a result: "COI_RETRY" for COI_RETRY. "COI_ERROR" for what is none. */
COIACCESSAPI
const char *COIResultGetName(COIRESULT in_ResultCode);

#ifdef __cplusplus
}
#endif

#endif
