/* Run functions on the sink. */
#ifndef _COIPIPELINE_SINK_H
#define _COIPIPELINE_SINK_H

#include "../common/COIResult_common.h"
#include "../common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What a run function looks like. The host finds it by name: mark it COINATIVELIBEXPORT, and link the
 * program with -rdynamic.
 */
typedef void (*RunFunctionPtr_t)(uint32_t in_BufferCount, void **in_ppBufferPointers,
                                 uint64_t *in_pBufferLengths, void *in_pMiscData,
                                 uint16_t in_MiscDataLength, void *in_pReturnValue,
                                 uint16_t in_ReturnValueLength);

/* Run functions wait until this has been called. */
COIRESULT COIPipelineStartExecutingRunFunctions();

#ifdef __cplusplus
}
#endif
#endif
