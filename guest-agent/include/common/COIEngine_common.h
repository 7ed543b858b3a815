/* Engines, as both sides see them. */
#ifndef _COIENGINE_COMMON_H
#define _COIENGINE_COMMON_H

#include "../common/COIResult_common.h"
#include "../common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Most engines of each kind. */
#define COI_MAX_ISA_x86_64_DEVICES 128
#define COI_MAX_ISA_MIC_DEVICES 128
#define COI_MAX_ISA_KNF_DEVICES 0
#define COI_MAX_ISA_KNC_DEVICES COI_MAX_ISA_MIC_DEVICES
#define COI_MAX_ISA_KNL_DEVICES COI_MAX_ISA_MIC_DEVICES

/* Kinds of engines. */
typedef enum {
    COI_DEVICE_INVALID = 0,
    COI_DEVICE_SOURCE = 1, /* the host */
    COI_DEVICE_MIC = 2,    /* a card, of whatever generation */
    COI_DEVICE_DEPRECATED_0 = 3,
    COI_DEVICE_KNC = 4, /* Knights Corner */
    COI_DEVICE_KNL = 5, /* Knights Landing */
    COI_DEVICE_MAX,
    COI_DEVICE_KNF = COI_DEVICE_DEPRECATED_0
} COI_DEVICE_TYPE;

/* The same by the names of older programs. */
typedef COI_DEVICE_TYPE COI_ISA_TYPE;
#define COI_ISA_INVALID COI_DEVICE_INVALID
#define COI_ISA_x86_64 COI_DEVICE_SOURCE
#define COI_ISA_MIC COI_DEVICE_MIC
#define COI_ISA_KNF COI_DEVICE_KNF
#define COI_ISA_KNC COI_DEVICE_KNC

/* The engine that runs the caller: its kind, and its index (from 0) among those of the kind.
   COI_INVALID_POINTER if either place is NULL. */
COIACCESSAPI
COIRESULT COIEngineGetIndex(COI_DEVICE_TYPE *out_pType, uint32_t *out_pIndex);

#ifdef __cplusplus
}
#endif

#endif
