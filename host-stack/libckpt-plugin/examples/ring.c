/* Two processes that send each other messages through rings in shared memory, which nobody but they know how to save:
 * a plugin drains the rings into the processes before a checkpoint, and makes new ones in a restart.
 *
 *     ring DIRECTORY both        both, as parent and child
 *     ring DIRECTORY 0 | 1       one of the two, as members of a job; the other may be in another tree
 *
 *     cc ring.c -lsnaprig_ckpt_plugin -lpthread -o ring
 *     snaprig ckpt launch --dir ckpt -- ./ring /tmp/there both
 *
 * phase      this plugin
 * quiesce    keeps its process's threads away from the rings
 * drain      publishes how many messages it has sent, looks up how many the other has, and takes that many out
 * save       says that the rings are its own: they are not saved
 * rebuild    process 0 makes a new file for the rings, and publishes its name
 * exchange   process 1 looks that up; both map it where the old one was
 * refill     puts what was drained back, for its own threads to find where they look
 * go         lets its process's threads go on
 *
 * Messages are numbered, and each process knows what comes next. It ends when DIRECTORY has a file "stop", and says
 * "right" if nothing was lost or doubled. While there is a file "broken", no restart succeeds. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "snaprig_ckpt_plugin.h"

#define SLOTS 64
#define LAST (~0ul)

/* A ring with one writer and one reader. */
struct ring {
	_Atomic unsigned long written, read;
	unsigned long messages[SLOTS];
};

static char *directory;
static int own, files;
/* rings[i] is written by process i. */
static struct ring *rings;
static unsigned long sent, received;
/* What was drained, and has not been put back: it comes before what is in the ring. */
static unsigned long drained[SLOTS];
static int drained_count, drained_next;
/* Held by whoever uses any of this. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void fail(const char *what)
{
	char line[200];
	int length = snprintf(line, sizeof line, "wrong: process %d: %s: %m\n", own, what);
	if (write(1, line, length) < 0)
		_exit(2);
	_exit(1);
}

static int is_there(const char *name)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", directory, name);
	return access(path, F_OK) == 0;
}

static int put(struct ring *ring, unsigned long message)
{
	unsigned long at = atomic_load(&ring->written);
	if (at - atomic_load(&ring->read) == SLOTS)
		return 0;
	ring->messages[at % SLOTS] = message;
	atomic_store(&ring->written, at + 1);
	return 1;
}

static int take(struct ring *ring, unsigned long *message)
{
	unsigned long at = atomic_load(&ring->read);
	if (atomic_load(&ring->written) == at)
		return 0;
	*message = ring->messages[at % SLOTS];
	atomic_store(&ring->read, at + 1);
	return 1;
}

/* The next message for this process, if there is one. */
static int next(unsigned long *message)
{
	if (drained_next < drained_count) {
		*message = drained[drained_next++];
		return 1;
	}
	return take(&rings[!own], message);
}

static void map(const char *path, int flags)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0666);
	if (fd < 0 || ftruncate(fd, 2 * sizeof *rings) < 0)
		fail(path);
	rings = mmap(rings, 2 * sizeof *rings, PROT_READ | PROT_WRITE, MAP_SHARED | (rings ? MAP_FIXED : 0), fd, 0);
	if (rings == MAP_FAILED)
		fail("mmap");
	close(fd);
}

static int quiesce(snaprig_ckpt_event *event, void *data)
{
	(void)event, (void)data;
	pthread_mutex_lock(&lock);
	return 0;
}

static int drain(snaprig_ckpt_event *event, void *data)
{
	(void)data;
	/* What was drained before and is not read yet comes first. */
	memmove(drained, drained + drained_next, (drained_count - drained_next) * sizeof *drained);
	drained_count -= drained_next;
	drained_next = 0;
	char ours = '0' + own, theirs = '0' + !own;
	if (snaprig_ckpt_publish(event, &ours, 1, &sent, sizeof sent))
		return -1;
	size_t bytes;
	const unsigned long *other = snaprig_ckpt_lookup(event, &theirs, 1, &bytes);
	if (!other || bytes != sizeof *other)
		return -1;
	while (received + drained_count < *other) {
		if (drained_count == SLOTS || !take(&rings[!own], &drained[drained_count]))
			return snaprig_ckpt_refuse(event, "what was sent is not in the ring");
		drained_count++;
	}
	return 0;
}

static int save(snaprig_ckpt_event *event, void *data)
{
	(void)data;
	snaprig_ckpt_own_region(event, rings, 2 * sizeof *rings);
	return 0;
}

static void resume(snaprig_ckpt_event *event, void *data)
{
	(void)event, (void)data;
	pthread_mutex_unlock(&lock);
}

static int rebuild(snaprig_ckpt_event *event, void *data)
{
	(void)data;
	if (is_there("broken"))
		return snaprig_ckpt_refuse(event, "there are no rings to be had");
	if (own)
		return 0;
	char path[4096];
	do
		snprintf(path, sizeof path, "%s/ring-%d", directory, files++);
	while (access(path, F_OK) == 0);
	map(path, O_CREAT | O_EXCL);
	return snaprig_ckpt_publish(event, "path", 4, path, strlen(path) + 1);
}

static int exchange(snaprig_ckpt_event *event, void *data)
{
	(void)data;
	const char *path = snaprig_ckpt_lookup(event, "path", 4, NULL);
	if (!path)
		return -1;
	if (own)
		map(path, 0);
	/* Both have it: it needs no name any more. */
	if (snaprig_ckpt_barrier(event, "mapped", 2))
		return -1;
	if (own)
		unlink(path);
	return 0;
}

static int refill(snaprig_ckpt_event *event, void *data)
{
	(void)data;
	for (int i = 0; i < drained_count; i++)
		if (!put(&rings[!own], drained[i]))
			return snaprig_ckpt_refuse(event, "the ring is full");
	drained_count = 0;
	return 0;
}

static void *send_all(void *unused)
{
	for (int is_over = 0; !is_over;) {
		int stops = sent % 1024 == 0 && is_there("stop");
		pthread_mutex_lock(&lock);
		if (put(&rings[own], stops ? LAST : sent)) {
			is_over = stops;
			sent++;
		}
		pthread_mutex_unlock(&lock);
		if (atomic_load(&rings[own].written) % SLOTS == 0)
			sched_yield();
	}
	return unused;
}

static int run(void)
{
	struct snaprig_ckpt_plugin plugin = {
		.size = sizeof plugin, .name = "ring", .quiesce = quiesce, .drain = drain, .pre_checkpoint = save,
		.resume = resume, .restart = rebuild, .exchange = exchange, .refill = refill, .go = resume,
	};
	if (snaprig_ckpt_register(&plugin) < 0)
		fail("snaprig_ckpt_register");
	pthread_t sender;
	if (pthread_create(&sender, NULL, send_all, NULL))
		fail("pthread_create");
	if (write(1, "ready\n", 6) != 6)
		fail("write");
	for (unsigned long message = 0; message != LAST;) {
		pthread_mutex_lock(&lock);
		int has = next(&message);
		if (has && message != LAST && message != received) {
			errno = 0;
			fail("a message was lost or doubled");
		}
		received += has;
		pthread_mutex_unlock(&lock);
		if (!has)
			sched_yield();
	}
	pthread_join(sender, NULL);
	if (write(1, "right\n", 6) != 6)
		fail("write");
	return 0;
}

int main(int count, char **arguments)
{
	if (count != 3) {
		fprintf(stderr, "usage: ring DIRECTORY both | 0 | 1\n");
		return 2;
	}
	directory = arguments[1];
	char path[4096];
	snprintf(path, sizeof path, "%s/ring", directory);
	map(path, O_CREAT);
	if (strcmp(arguments[2], "both")) {
		own = atoi(arguments[2]) != 0;
		return run();
	}
	pid_t child = fork();
	own = child == 0;
	int status = run();
	if (own)
		return status;
	if (waitpid(child, &status, 0) != child || status)
		fail("the child");
	return 0;
}
