/* Events, as both sides see them. */
#ifndef _COIEVENT_COMMON_H
#define _COIEVENT_COMMON_H

#include "../common/COIResult_common.h"
#include "../common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Signals a user event of the source, from either side; once. An event that is signalled already, or
   that is not registered (any more), is let be: COI_SUCCESS. COI_INVALID_HANDLE if it is no user event;
   COI_ERROR if the sink could not send it. */
COIACCESSAPI
COIRESULT COIEventSignalUserEvent(COIEVENT in_Event);

#ifdef __cplusplus
}
#endif

#endif
