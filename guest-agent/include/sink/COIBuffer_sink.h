/* References to buffers, on the sink. */
#ifndef _COIBUFFER_SINK_H
#define _COIBUFFER_SINK_H

#include "../common/COIResult_common.h"
#include "../common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Takes a reference to a buffer that the run function which calls this was given: operations of the
 * host on the buffer wait until it is given back, however long after the run function has returned.
 *
 * COI_INVALID_POINTER: a null pointer. COI_INVALID_HANDLE: there is no buffer.
 */
COIRESULT COIBufferAddRef(void *in_pBuffer);

/*
 * Gives a reference back, one that COIBufferAddRef took or that came with the buffer (COI_SINK_*_ADDREF).
 *
 * COI_INVALID_POINTER: a null pointer. COI_INVALID_HANDLE: there is no buffer, or no reference to it.
 */
COIRESULT COIBufferReleaseRef(void *in_pBuffer);

#ifdef __cplusplus
}
#endif
#endif
