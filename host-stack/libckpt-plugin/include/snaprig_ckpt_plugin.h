/* Plugins of checkpoints (snaprig ckpt): code within a program that takes down what cannot be saved from outside - a
 * connection to a device, memory mapped from one - before a checkpoint, and builds it up again after it.
 *
 *     phase       when                                                              the program's threads
 *     quiesce     a checkpoint begins: keep the program from using it               run
 *     drain       everybody has quiesced: what is on its way arrives, or is taken   run
 *     save        everybody has drained: take down, write files, say what is owned  run
 *     resume      there is a checkpoint now, or none; the program is what it was    run
 *     rebuild     in a restarted process: build up again, publish how to reach it   stand still
 *     exchange    everybody has rebuilt: connect with the others                    stand still
 *     refill      everybody has exchanged: put back what was taken out              stand still
 *     go          everybody has refilled: the program runs                          run
 *
 * "Everybody" is every plugin of every process of every member of the job. Within a phase plugins with the same order
 * value work at the same time, so they may wait for each other; lower ones go first in quiesce, drain and save, and
 * last in all others. Any phase but resume and go may refuse: then a checkpoint is given up, and everybody who has passed
 * a phase resumes; a restart is given up, and its processes end before any of their own code has run.
 *
 * Each plugin has a thread of this library's, in which its functions are called. Before a checkpoint the threads of the
 * program run, too: a plugin keeps them away from what it has taken down by locks of its own, from quiesce (or save) to
 * resume or go. In a restart, until go, they stand still wherever they were: a plugin must not wait for a lock that one of
 * them may hold, such as that of a stdio stream. Until resume or go fork(2) waits, and so does snaprig_ckpt_unregister.
 *
 * A child of fork(2) has the plugins of its parent; a program that is exec'ed registers its own. Without a supervisor
 * (snaprig ckpt launch) nothing is ever called, and there is no thread. If the supervisor dies, those who wait are
 * told to resume. Link with -lsnaprig_ckpt_plugin. */
#ifndef SNAPRIG_CKPT_PLUGIN_H
#define SNAPRIG_CKPT_PLUGIN_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a function is called for; valid until it returns, and for the thread that it is called in. */
typedef struct snaprig_ckpt_event snaprig_ckpt_event;

struct snaprig_ckpt_plugin {
	/* sizeof(struct snaprig_ckpt_plugin): later versions have more. */
	size_t size;
	/* For people and files: 1 to 64 letters, digits, '-', '_' and '.'. Plugins of one name share a board. */
	const char *name;
	/* Lower ones quiesce, drain and save earlier, and do all else later. */
	int order;
	/* How long a function may take, in seconds; 0: 30. If it takes longer, there is no checkpoint, or no restart. */
	unsigned patience;
	/* What the functions are given. */
	void *data;
	/* Phase save. Anything but 0 refuses the checkpoint; then what it has done must be undone. There must be this
	 * function or quiesce. */
	int (*pre_checkpoint)(snaprig_ckpt_event *event, void *data);
	/* The program runs on. NULL: there is nothing to do, as for all that follow. */
	void (*resume)(snaprig_ckpt_event *event, void *data);
	/* Phase rebuild. Anything but 0 ends the restart. NULL: resume is called. */
	int (*restart)(snaprig_ckpt_event *event, void *data);
	/* The other phases: those that return something refuse by anything but 0. */
	int (*quiesce)(snaprig_ckpt_event *event, void *data);
	int (*drain)(snaprig_ckpt_event *event, void *data);
	int (*exchange)(snaprig_ckpt_event *event, void *data);
	int (*refill)(snaprig_ckpt_event *event, void *data);
	void (*go)(snaprig_ckpt_event *event, void *data);
};

/* Registers a plugin, of which a copy is made; its number, or -EINVAL (size, name, patience, functions) or -EAGAIN (no
 * thread). */
int snaprig_ckpt_register(const struct snaprig_ckpt_plugin *plugin);

/* 0, or -ENOENT. Waits while a checkpoint is taken. */
int snaprig_ckpt_unregister(int number);

/* Whether checkpoints of this process may be taken. */
int snaprig_ckpt_is_supervised(void);

/* In save: a descriptor that is the plugin's. It is not saved. In a restarted process it is a socket whose other end is
 * closed: reading ends, writing is EPIPE; rebuild puts another file there (dup2(2)), or closes it. */
void snaprig_ckpt_own_descriptor(snaprig_ckpt_event *event, int fd);

/* In save: memory that is the plugin's, all pages of it. It is not saved. In a restarted process it cannot be touched,
 * and nothing else is there; rebuild maps something over it (mmap(2), MAP_FIXED). */
void snaprig_ckpt_own_region(snaprig_ckpt_event *event, void *start, size_t bytes);

/* A directory for files of the plugin's and its process that are part of the checkpoint; there is either both or none.
 * They must be on the disk (fsync(2)) when save returns. At the restart the directory has another name. NULL, and errno,
 * if it cannot be made, and in resume and go. Valid until the function returns. */
const char *snaprig_ckpt_directory(snaprig_ckpt_event *event);

/* A variable of the environment that the supervisor was started in, or NULL. Valid until the function returns. */
const char *snaprig_ckpt_variable(snaprig_ckpt_event *event, const char *name);

/* Why it refuses; returns -1. */
int snaprig_ckpt_refuse(snaprig_ckpt_event *event, const char *reason);

/* How many plugins of this name go through the phases of this round: in all processes of all members of the job. */
unsigned snaprig_ckpt_participants(snaprig_ckpt_event *event);

/* The board of the plugins of one name, across all processes of the job. What is published goes with the round. Keys have
 * 128 bytes at most, values 32 KiB. Functions return 0, or -1 (NULL): the reason is then that of the plugin's refusal,
 * unless it gives another. Not in resume and go. In a round that is given up, because somebody refuses or a process ends
 * that others may wait for, all of them fail at once: who waits for anything else in a phase calls one now and then. */

/* Puts an entry on the board. A key that another plugin has published is an error. */
int snaprig_ckpt_publish(snaprig_ckpt_event *event, const void *key, size_t key_bytes, const void *value,
			 size_t value_bytes);

/* What is published under a key: waits until it is there, but not longer than this plugin may take. Followed by a zero
 * byte that does not count. Valid until the function returns. */
const void *snaprig_ckpt_lookup(snaprig_ckpt_event *event, const void *key, size_t key_bytes, size_t *value_bytes);

/* Called with each entry that is there now and whose key begins so, in the order of the keys, until it returns anything
 * but 0, which snaprig_ckpt_collect returns, too. What was published in an earlier phase is all there. */
typedef int (*snaprig_ckpt_entry)(const void *key, size_t key_bytes, const void *value, size_t value_bytes, void *data);
int snaprig_ckpt_collect(snaprig_ckpt_event *event, const void *prefix, size_t prefix_bytes, snaprig_ckpt_entry entry,
			 void *data);

/* Waits until so many plugins of this name are at the barrier: snaprig_ckpt_participants, if it is for all. */
int snaprig_ckpt_barrier(snaprig_ckpt_event *event, const char *name, unsigned count);

#ifdef __cplusplus
}
#endif

#endif
