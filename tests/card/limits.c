/* Asks for more than a card has, each in its own way, and says what it got. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNK = 16 << 20 };

/* Touches what it is given until nothing more is given. */
static int memory(void)
{
	for (;;) {
		char *chunk = malloc(CHUNK);
		if (!chunk) {
			int error = errno;
			printf("malloc: %s\n", strerror(error));
			return 0;
		}
		memset(chunk, 1, CHUNK);
	}
}

/* Touches more than there is of what was never promised. */
static int reserve(void)
{
	size_t bytes = 4ul << 30;
	char *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (all == MAP_FAILED)
		return 2;
	memset(all, 1, bytes);
	return 1;
}

/* A child has more than half of what there is, and its parent touches the rest, and a little more than that. */
static int largest(void)
{
	size_t most = 36 << 20, bytes = 4ul << 30;
	char *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int ready[2], status;
	if (all == MAP_FAILED || pipe(ready))
		return 2;
	pid_t child = fork();
	if (child == 0) {
		memset(all, 1, most);
		close(ready[1]);
		for (;;)
			pause();
	}
	char none;
	close(ready[1]);
	if (child < 0 || read(ready[0], &none, 1) != 0)
		return 2;
	size_t touched = 0;
	while (waitpid(child, &status, WNOHANG) == 0 && touched < bytes)
		memset(all + touched, 1, 1 << 16), touched += 1 << 16;
	printf("the child: signal %d, the parent has less: %d\n", WTERMSIG(status), touched < most);
	return 0;
}

/* Every process forks until it cannot. */
static int forks(void)
{
	pid_t first = getpid();
	while (fork() >= 0)
		;
	int error = errno;
	if (getpid() != first)
		for (;;)
			pause();
	printf("fork: %s\n", strerror(error));
	return 0;
}

static void *wait_for_ever(void *unused)
{
	pause();
	return unused;
}

static int threads(void)
{
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 16384);
	pthread_t thread;
	int error;
	do
		error = pthread_create(&thread, &small, wait_for_ever, NULL);
	while (!error);
	printf("pthread_create: %s\n", strerror(error));
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "memory"))
		return memory();
	if (!strcmp(what, "reserve"))
		return reserve();
	if (!strcmp(what, "largest"))
		return largest();
	if (!strcmp(what, "forks"))
		return forks();
	if (!strcmp(what, "threads"))
		return threads();
	return 64;
}
