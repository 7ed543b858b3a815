/* Snapify: snapshots of offload processes, by the host program that has started them with COI.
 *
 *     checkpoint   snapify_pause, snapify_capture(false), snapify_wait, snapify_resume
 *     swap out     snapify_pause, snapify_capture(true), snapify_wait
 *     swap in      snapify_restore, snapify_resume
 *     migrate      swap out, then in on another card
 *     live         snapify_copy before any of these: the process works while most of it is saved
 *
 * A program has as many of them under way as it likes, of different processes, on any cards; for one process there is one
 * call at a time. While a process is paused, whatever the program asks of it with COI waits until snapify_resume, and run
 * functions stand still. What `snaprig snapify` does from outside is the same: both see what the other has done.
 *
 * Functions return nothing; snapify_result says how the last call ended. With SNAPRIG_COI_TRACE=1 there is a line on
 * standard error for each, which says why it failed.
 *
 * Compile and link with what `snaprig include --snapify` prints: -lsnapify -lcoi_host -lpthread. */
#ifndef SNAPIFY_H
#define SNAPIFY_H

#include <semaphore.h>
#ifndef __cplusplus
#include <stdbool.h>
#endif

#include "common/COIResult_common.h"
#include "common/COITypes_common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A snapshot of a process. The program sets m_snapshot_path and m_process before snapify_pause, and leaves the structure
   where it is until the last call for it has ended. */
typedef struct {
	/* A directory that there is. The snapshot is a directory of its own in it, called after the process; an earlier one
	   of the same process is replaced when the new one is whole. */
	char *m_snapshot_path;
	/* Made by snapify_capture, and posted once, when the capture has ended, well or not. */
	sem_t m_sem;
	/* The process. */
	COIPROCESS m_process;
} snapify_t;

/* Copies the process while it works, for the snapify_pause that follows with the same m_snapshot_path: that, and the capture,
   only have what was written since. device: the card that is to have it next, which reads the copies as well; -1: the same
   one, or any. Returns when all is copied. The process goes on until snapify_pause; snapify_resume forgets the copies. */
void snapify_copy(snapify_t *snapshot, int device);

/* Stops all that goes on between the program and the process, on both sides, waits until nothing is on its way, and saves
   the process's COI buffers. A run function may be in the middle of its work. If it fails, nothing has changed. */
void snapify_pause(snapify_t *snapshot);

/* Begins to save the paused process, once for each snapify_pause, and returns at once. terminate: the process ends when
   all of the snapshot is on disk. How it ended: snapify_wait, or m_sem, then snapify_result. If it fails, the process is
   there, and paused, and an earlier snapshot is untouched. */
void snapify_capture(snapify_t *snapshot, bool terminate);

/* Waits for the end of the capture. Returns at once if there is none. */
void snapify_wait(snapify_t *snapshot);

/* Lets the program and the process go on. */
void snapify_resume(snapify_t *snapshot);

/* Brings the process back from its snapshot on a card, by its number in COIEngineGetHandle; also if its card was lost while
   it was paused. It must be the snapshot of the snapify_pause that the process is in, for the program has gone on from any
   older one; every byte of it is verified first. The process stays paused. m_process is what it was: it is the process's
   handle on every card, and so are those of its buffers, pipelines and functions. If it fails, another card may do. */
void snapify_restore(snapify_t *snapshot, int device);

/* How the last call for the snapshot's process ended:
     COI_SUCCESS
     COI_INVALID_POINTER     no snapshot, or no path
     COI_INVALID_HANDLE      m_process is no process
     COI_NOT_INITIALIZED     it was not the call's turn; the card is not up; or the program has another libcoi_host.so.0
     COI_OUT_OF_RANGE        there is no such card
     COI_DOES_NOT_EXIST      there is no such directory
     COI_RESOURCE_EXHAUSTED  there is no room for the snapshot, or on the card
     COI_PROCESS_DIED        the process, or its card, is gone
     COI_TIME_OUT_REACHED    what was on its way did not arrive
     COI_NOT_SUPPORTED       SNAPRIG_SNAPIFY=off
     COI_ERROR               all else */
COIRESULT snapify_result(const snapify_t *snapshot);

#ifdef __cplusplus
}
#endif

#endif
