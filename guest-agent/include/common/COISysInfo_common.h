/* What the caller runs on: cores, hardware threads, caches of its processor. */
#ifndef _COISYSINFO_COMMON_H
#define _COISYSINFO_COMMON_H

#include "../common/COITypes_common.h"
#include <assert.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where cpuid leaf 1 has the APIC id in EBX. */
#define INITIAL_APIC_ID_BITS 0xFF000000

/* The APIC id of the caller's hardware thread: unique, perhaps with gaps. */
COIACCESSAPI
uint32_t COISysGetAPICID(void);

/* How many cores there are; 0 if that cannot be told. */
COIACCESSAPI
uint32_t COISysGetCoreCount(void);

/* How many hardware threads there are; 0 if that cannot be told. */
COIACCESSAPI
uint32_t COISysGetHardwareThreadCount(void);

/* Which hardware thread the caller is on: neighbours differ by one, from 0 to the count less one. (uint32_t)-1
   if that cannot be told; so below. */
COIACCESSAPI
uint32_t COISysGetHardwareThreadIndex(void);

/* Which core. */
COIACCESSAPI
uint32_t COISysGetCoreIndex(void);

/* How many second-level caches there are. */
COIACCESSAPI
uint32_t COISysGetL2CacheCount(void);

/* Which of them is the caller's. */
COIACCESSAPI
uint32_t COISysGetL2CacheIndex(void);

#ifdef __cplusplus
}
#endif

#endif
