/* Time, cheaply. */
#ifndef _COIPERF_COMMON_H
#define _COIPERF_COMMON_H

#include "../common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A counter of constant rate, the same on all cores; 0 if there is none. */
COIACCESSAPI
uint64_t COIPerfGetCycleCounter(void);

/* Its rate, in hertz. */
COIACCESSAPI
uint64_t COIPerfGetCycleFrequency(void);

#ifdef __cplusplus
}
#endif

#endif
