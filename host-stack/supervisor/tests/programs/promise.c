/* Processes whose plugins wait for each other in a drain, with the patience of an hour.
 *
 *     promise LOG ROLE
 *
 * One of them promises something that it never keeps: it "holds" the drain, or "leaves" it, and is killed by the test. The
 * others wait for that as long as it is one of them: who "looks" has asked the board, who "meets" is at a barrier, who
 * "polls" asks the board again and again, and who "rests" waits for nothing. They end when there is the file "go". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "snaprig_ckpt_plugin.h"

#define CHECK(it) do { if (!(it)) { printf("wrong: %s:%d: %s: %m\n", __FILE__, __LINE__, #it); exit(1); } } while (0)
#define HOUR 3600

static int log_fd;
static const char *role;

static int is(const char *what)
{
	return !strcmp(role, what);
}

static void say(const char *what)
{
	char line[200];
	int length = snprintf(line, sizeof line, "%s %s\n", what, role);
	CHECK(write(log_fd, line, length) == length);
}

static int found(const void *key, size_t key_bytes, const void *value, size_t value_bytes, void *data)
{
	(void)key, (void)key_bytes, (void)value, (void)value_bytes, (void)data;
	return 1;
}

static int quiesce(snaprig_ckpt_event *event, void *data)
{
	(void)data;
	if (is("holds") || is("leaves"))
		return snaprig_ckpt_publish(event, "promised", 8, "", 0);
	return 0;
}

static int drain(snaprig_ckpt_event *event, void *data)
{
	(void)data;
	int promised = snaprig_ckpt_collect(event, "promised", 8, found, NULL);
	say(promised ? "waits" : "drains");
	if (is("holds"))
		sleep(HOUR);
	if (promised != 1 || is("leaves") || is("rests"))
		return promised < 0 ? -1 : 0;
	if (is("looks"))
		return snaprig_ckpt_lookup(event, "kept", 4, NULL) ? 0 : -1;
	if (is("meets"))
		return snaprig_ckpt_barrier(event, "kept", snaprig_ckpt_participants(event) + 1);
	while ((promised = snaprig_ckpt_collect(event, "kept", 4, found, NULL)) == 0)
		usleep(1000);
	return promised < 0 ? -1 : 0;
}

static void resume(snaprig_ckpt_event *event, void *data)
{
	(void)event, (void)data;
	say("resumes");
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(count == 3);
	role = arguments[2];
	log_fd = open(arguments[1], O_WRONLY | O_CREAT | O_APPEND, 0666);
	CHECK(log_fd >= 0);
	struct snaprig_ckpt_plugin plugin = {
		.size = sizeof plugin, .name = "promise", .patience = HOUR,
		.quiesce = quiesce, .drain = drain, .resume = resume,
	};
	CHECK(snaprig_ckpt_register(&plugin) >= 0);
	printf("ready %s %d\n", role, getpid());
	while (access("go", F_OK))
		usleep(1000);
	printf("right\n");
	return 0;
}
