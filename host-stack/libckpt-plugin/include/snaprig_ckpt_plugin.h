/* Plugins of checkpoints (snaprig ckpt): code within a program that takes down what cannot be saved from outside - a
 * connection to a device, memory mapped from one - before a checkpoint, and builds it up again after it.
 *
 *     event            when                                                        order
 *     pre_checkpoint   before the program is stopped; may refuse                   ascending
 *     resume           the program runs on: there is a checkpoint, or none         descending
 *     restart          in a restarted process, instead of resume; may refuse       descending
 *
 * Plugins of all processes of a tree run one after another, in a thread of this library's, while the threads of the
 * program run, too: a plugin keeps them away from what it has taken down by locks of its own, from pre_checkpoint to
 * what follows. Until then fork(2) waits, and so does snaprig_ckpt_unregister.
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

/* What a function is called for; valid until it returns. */
typedef struct snaprig_ckpt_event snaprig_ckpt_event;

struct snaprig_ckpt_plugin {
	/* sizeof(struct snaprig_ckpt_plugin): later versions have more. */
	size_t size;
	/* For people and files: 1 to 64 letters, digits, '-', '_' and '.'. */
	const char *name;
	/* Lower ones are asked earlier before a checkpoint, and told later after it. */
	int order;
	/* How long a function may take, in seconds; 0: 30. If it takes longer, there is no checkpoint, or no restart. */
	unsigned patience;
	/* What the functions are given. */
	void *data;
	/* There will be a checkpoint. Anything but 0 refuses it; then everything must be as before. */
	int (*pre_checkpoint)(snaprig_ckpt_event *event, void *data);
	/* The program runs on. NULL: there is nothing to do. */
	void (*resume)(snaprig_ckpt_event *event, void *data);
	/* The program has been restarted. Anything but 0 ends it. NULL: resume is called. */
	int (*restart)(snaprig_ckpt_event *event, void *data);
};

/* Registers a plugin, of which a copy is made; its number, or -EINVAL (size, name, patience, pre_checkpoint) or
 * -EAGAIN (no thread). */
int snaprig_ckpt_register(const struct snaprig_ckpt_plugin *plugin);

/* 0, or -ENOENT. Waits while a checkpoint is taken. */
int snaprig_ckpt_unregister(int number);

/* Whether checkpoints of this process may be taken. */
int snaprig_ckpt_is_supervised(void);

/* In pre_checkpoint: a descriptor that is the plugin's. It is not saved. In a restarted process it is a socket whose
 * other end is closed: reading ends, writing is EPIPE; restart puts another file there (dup2(2)), or closes it. */
void snaprig_ckpt_own_descriptor(snaprig_ckpt_event *event, int fd);

/* In pre_checkpoint: memory that is the plugin's, all pages of it. It is not saved. In a restarted process it cannot be
 * touched, and nothing else is there; restart maps something over it (mmap(2), MAP_FIXED). */
void snaprig_ckpt_own_region(snaprig_ckpt_event *event, void *start, size_t bytes);

/* In pre_checkpoint and restart: a directory for files of the plugin's that are part of the checkpoint; there is either
 * both or none. They must be on the disk (fsync(2)) when pre_checkpoint returns. At the restart the directory has
 * another name. NULL, and errno, if it cannot be made. Valid until the function returns. */
const char *snaprig_ckpt_directory(snaprig_ckpt_event *event);

/* In restart: a variable of the environment that the program was restarted in, or NULL. Valid until the function
 * returns. */
const char *snaprig_ckpt_variable(snaprig_ckpt_event *event, const char *name);

/* In pre_checkpoint and restart: why it refuses; returns -1. */
int snaprig_ckpt_refuse(snaprig_ckpt_event *event, const char *reason);

#ifdef __cplusplus
}
#endif

#endif
