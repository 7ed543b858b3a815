/* Types of COI, by the names of the public MPSS interface. */
#ifndef COITYPES_COMMON_H
#define COITYPES_COMMON_H

#include <stdint.h>

#ifdef __cplusplus
#define COINATIVELIBEXPORT extern "C" __attribute__((visibility("default")))
#else
#define COINATIVELIBEXPORT __attribute__((visibility("default")))
#endif

#define COIACCESSAPI
#define COIACCESSAPI2

#endif
