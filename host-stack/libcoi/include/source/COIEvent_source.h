/* Events: the ends of operations, and events that programs signal themselves.
 *
 * Where a call takes a place for its completion event, that place says when it returns:
 *     NULL, COI_EVENT_SYNC   when the operation is done; its result is the call's
 *     COI_EVENT_ASYNC        at once; nobody learns when it is done
 *     an event's address     at once; the event is signalled when it is done
 */
#ifndef _COIEVENT_SOURCE_H
#define _COIEVENT_SOURCE_H

#include "../common/COIResult_common.h"
#include "../common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COI_EVENT_ASYNC ((COIEVENT *)1)
#define COI_EVENT_SYNC ((COIEVENT *)2)

/* An event that is none: COIEVENT event = COI_EVENT_INITIALIZER; */
#define COI_EVENT_INITIALIZER                                                                                          \
    {                                                                                                                  \
        {                                                                                                              \
            0, (uint64_t)-1                                                                                                      \
        }                                                                                                              \
    }

/* Waits until all events are signalled, or any: which ones were is left in out_pSignaledIndices, as places in
   in_pEvents, and how many in out_pNumSignaled; both may be NULL if all are waited for, or there is but one.
   A timeout of 0 only looks, one of -1 waits for ever.
   COI_TIME_OUT_REACHED; COI_OUT_OF_RANGE for no events, or a timeout below -1; COI_INVALID_POINTER for no in_pEvents;
   COI_ARGUMENT_MISMATCH if just one of the out places is NULL, or both when any of several events is waited for.
   An operation that failed: its result if it is the only event, else COI_PROCESS_DIED. COI_EVENT_CANCELED if a user
   event was unregistered meanwhile. An event that is not known has been signalled long ago. */
COIACCESSAPI
COIRESULT COIEventWait(uint16_t in_NumEvents, const COIEVENT *in_pEvents, int32_t in_TimeoutMilliseconds,
                       uint8_t in_WaitForAll, uint32_t *out_pNumSignaled, uint32_t *out_pSignaledIndices);

/* Makes an event that the program signals with COIEventSignalUserEvent, once, on either side.
   COI_INVALID_POINTER. */
COIACCESSAPI
COIRESULT COIEventRegisterUserEvent(COIEVENT *out_pEvent);

/* Takes a user event away. Whoever waits for it gets COI_EVENT_CANCELED. COI_INVALID_HANDLE if it is none. */
COIACCESSAPI
COIRESULT COIEventUnregisterUserEvent(COIEVENT in_Event);

/* Called when an event is signalled, with the result of its operation, before anybody who waits for it wakes up. It
   should be short, and wait for nothing. */
typedef void (*COI_EVENT_CALLBACK)(COIEVENT in_Event, const COIRESULT in_Result, const void *in_UserData);

/* Has in_Callback called once, when the event is signalled; right now, by the caller, if it was before. A later
   callback for the same event takes the place of an earlier one. in_Flags is 0, else COI_ARGUMENT_MISMATCH.
   COI_INVALID_HANDLE for an invalid event, or no callback. */
COIACCESSAPI
COIRESULT COIEventRegisterCallback(const COIEVENT in_Event, COI_EVENT_CALLBACK in_Callback, const void *in_UserData,
                                   const uint64_t in_Flags);

#ifdef __cplusplus
}
#endif

#endif
