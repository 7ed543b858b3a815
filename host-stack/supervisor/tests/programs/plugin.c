/* A program with plugins, which tells what they are asked and told in a file.
 *
 *     plugin LOG [threads] [fork]
 *
 * It has a connection to a stranger (the socket "stranger"), which nobody but a plugin can save, and pages that are
 * mapped from a file ("device"), as those of a device would be. Files in its directory say what to do: slow, go-on,
 * refuse, broken, go. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "snaprig_ckpt_plugin.h"

#define CHECK(it) do { if (!(it)) { printf("wrong: %s:%d: %s: %m\n", __FILE__, __LINE__, #it); exit(1); } } while (0)
#define PAGES 16
#define BYTES (PAGES * 4096)

static int log_fd, stranger = -1;
static char *device;
static volatile int stop;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int is_there(const char *name)
{
	return access(name, F_OK) == 0;
}

static void say(const char *format, ...)
{
	char line[200];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	CHECK(write(log_fd, line, length) == length);
}

/* The device: a byte that it answers, from whoever listens now, and memory that says the same. */
static int open_stranger(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX, .sun_path = "stranger" };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(connect(fd, (struct sockaddr *)&name, sizeof name) == 0);
	return fd;
}

static void map_device(void *where)
{
	int fd = open("device", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0);
	device = mmap(where, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | (where ? MAP_FIXED : 0), fd, 0);
	CHECK(device != MAP_FAILED);
	close(fd);
}

static char ask(void)
{
	char byte = 'x';
	pthread_mutex_lock(&lock);
	CHECK(send(stranger, &byte, 1, MSG_NOSIGNAL) == 1 && recv(stranger, &byte, 1, 0) == 1);
	device[0] = byte;
	pthread_mutex_unlock(&lock);
	return byte;
}

static int before(snaprig_ckpt_event *event, void *data)
{
	say("before %s\n", (char *)data);
	if (strcmp(data, "device"))
		return 0;
	pthread_mutex_lock(&lock);
	snaprig_ckpt_own_descriptor(event, stranger);
	snaprig_ckpt_own_region(event, device, BYTES);
	char path[4200];
	const char *directory = snaprig_ckpt_directory(event);
	CHECK(directory);
	snprintf(path, sizeof path, "%s/device", directory);
	FILE *file = fopen(path, "w");
	CHECK(file && fprintf(file, "%p", (void *)device) > 0 && fflush(file) == 0 && fsync(fileno(file)) == 0);
	fclose(file);
	return 0;
}

static int refuse(snaprig_ckpt_event *event, void *data)
{
	say("before %s\n", (char *)data);
	if (is_there("slow"))
		while (!is_there("go-on"))
			usleep(1000);
	return is_there("refuse") ? snaprig_ckpt_refuse(event, "the tape is not rewound") : 0;
}

static void resume(snaprig_ckpt_event *event, void *data)
{
	say("resume %s\n", (char *)data);
	if (!strcmp(data, "device"))
		pthread_mutex_unlock(&lock);
}

static int restart(snaprig_ckpt_event *event, void *data)
{
	say("restart %s\n", (char *)data);
	if (strcmp(data, "device"))
		return 0;
	if (is_there("broken"))
		return snaprig_ckpt_refuse(event, "the device is broken");
	/* What was its memory can be touched by nobody, and it is where it was. */
	char path[4200], text[40] = "", expected[40];
	snprintf(path, sizeof path, "%s/device", snaprig_ckpt_directory(event));
	int file = open(path, O_RDONLY);
	CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0);
	close(file);
	snprintf(expected, sizeof expected, "%p", (void *)device);
	CHECK(!strcmp(text, expected));
	char byte;
	CHECK(write(log_fd, device, 1) < 0 && errno == EFAULT);
	CHECK(recv(stranger, &byte, 1, 0) == 0);
	const char *variable = snaprig_ckpt_variable(event, "SNAPRIG_TEST");
	CHECK(!snaprig_ckpt_variable(event, "SNAPRIG_NO_SUCH"));
	say("variable %s\n", variable ? variable : "none");
	int fresh = open_stranger();
	CHECK(dup3(fresh, stranger, O_CLOEXEC) == stranger);
	close(fresh);
	map_device(device);
	pthread_mutex_unlock(&lock);
	return 0;
}

static void *work(void *unused)
{
	while (!stop)
		ask();
	return unused;
}

static int has(int count, char **arguments, const char *what)
{
	for (int i = 2; i < count; i++)
		if (!strcmp(arguments[i], what))
			return 1;
	return 0;
}

static void add(const char *name, int order, int (*pre)(snaprig_ckpt_event *, void *), unsigned patience)
{
	struct snaprig_ckpt_plugin plugin = {
		.size = sizeof plugin, .name = name, .order = order, .patience = patience, .data = (void *)name,
		.pre_checkpoint = pre, .resume = resume, .restart = restart,
	};
	CHECK(snaprig_ckpt_register(&plugin) >= 0);
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	log_fd = open(arguments[1], O_WRONLY | O_CREAT | O_APPEND, 0666);
	CHECK(log_fd >= 0);
	struct snaprig_ckpt_plugin bad = { .size = sizeof bad, .name = "not a name", .pre_checkpoint = before };
	CHECK(snaprig_ckpt_register(&bad) == -EINVAL && snaprig_ckpt_unregister(77) == -ENOENT);
	stranger = open_stranger();
	map_device(NULL);
	add("late", 2, refuse, 1);
	add("early", -5, before, 0);
	add("device", 1, before, 0);
	pid_t child = 0;
	if (has(count, arguments, "fork")) {
		child = fork();
		if (!child) {
			/* A connection of its own; the plugins are those of its parent. */
			close(stranger);
			stranger = open_stranger();
		}
	}
	pthread_t threads[4];
	int many = has(count, arguments, "threads");
	for (int i = 0; many && i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
	printf(child || !has(count, arguments, "fork") ? "ready\n" : "child\n");
	while (!is_there("go"))
		ask();
	stop = 1;
	for (int i = 0; many && i < 4; i++)
		pthread_join(threads[i], NULL);
	if (child) {
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
	}
	if (child || !has(count, arguments, "fork"))
		printf("right\n");
	return 0;
}
