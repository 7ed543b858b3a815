/* A process to checkpoint: so many bytes, half of them random, and threads that write to a share of them.
 *
 *     ckpt MEGABYTES THREADS DIRTY_PERCENT READY STOP
 *
 * It makes the file READY when all memory has been written to, and ends well when there is a file STOP, with the
 * longest time in ms for which its first thread did not run. DIRTY_PERCENT of the pages are written to every 100 ms
 * at most. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static uint64_t *memory;
static size_t pages, dirty_pages;
static long threads;
static atomic_int stop;

static uint64_t next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static double now_ms(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static void pause_ms(long ms)
{
	struct timespec time = {0, ms * 1000000};
	nanosleep(&time, NULL);
}

static void *write_on(void *argument)
{
	size_t number = (size_t)argument, own = dirty_pages / threads;
	/* Every hundredth of what is to be written, and a pause of 1 ms after it. */
	size_t at = 0, step = own / 100 + 1;
	while (!stop) {
		for (size_t done = 0; done < step && own; done++, at++)
			memory[(number * own + at % own) * (PAGE / 8)]++;
		pause_ms(1);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	pages = strtoull(argv[1], NULL, 10) << 20 >> 12;
	threads = strtol(argv[2], NULL, 10);
	dirty_pages = pages * strtod(argv[3], NULL) / 100;
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	uint64_t state = 1;
	for (size_t page = 0; page < pages; page++)
		for (size_t word = 0; word < PAGE / 8; word++)
			memory[page * (PAGE / 8) + word] = page % 2 ? next(&state) : page;
	for (long number = 0; number < threads; number++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, write_on, (void *)number))
			return 1;
	}
	fclose(fopen(argv[4], "w"));
	double longest = 0, last = now_ms();
	while (access(argv[5], F_OK)) {
		pause_ms(1);
		double now = now_ms();
		if (now - last > longest)
			longest = now - last;
		last = now;
	}
	stop = 1;
	printf("%f\n", longest);
	return 0;
}
