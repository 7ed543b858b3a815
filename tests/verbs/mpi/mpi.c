/*
 * Sums of known vectors over all processes, a ring of messages of many sizes, and one-sided puts;
 * every byte is compared.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { LONGEST = 1 << 20 };

static int rank, size;

static void expect(int is, const char *what, int at)
{
	if (!is) {
		printf("rank %d: %s is wrong at %d\n", rank, what, at);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

static void sums(void)
{
	enum { COUNT = 10000 };
	static long mine[COUNT], all[COUNT];

	for (int i = 0; i < COUNT; i++)
		mine[i] = (long)i * (rank + 1);
	MPI_Allreduce(mine, all, COUNT, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < COUNT; i++)
		expect(all[i] == (long)i * size * (size + 1) / 2, "a sum", i);
}

/* Eager, by several fragments, and by a rendezvous. */
static void ring(void)
{
	unsigned char *out = malloc(LONGEST), *in = malloc(LONGEST);
	int to = (rank + 1) % size, from = (rank + size - 1) % size;

	for (int bytes = 1; bytes <= LONGEST; bytes = bytes * 3 + 1) {
		for (int i = 0; i < bytes; i++)
			out[i] = i * 7 + rank + bytes;
		MPI_Sendrecv(out, bytes, MPI_BYTE, to, 1, in, bytes, MPI_BYTE, from, 1,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < bytes; i++)
			expect(in[i] == (unsigned char)(i * 7 + from + bytes), "a message", i);
	}
	free(out);
	free(in);
}

static void puts_and_atomics(void)
{
	long *window, one = 1, seen;
	MPI_Win handle;

	MPI_Win_allocate(sizeof(long) * (size + 1), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD,
			 &window, &handle);
	for (int i = 0; i <= size; i++)
		window[i] = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, handle);
	for (int peer = 0; peer < size; peer++) {
		long value = 100 * rank + peer;

		MPI_Put(&value, 1, MPI_LONG, peer, rank, 1, MPI_LONG, handle);
		MPI_Fetch_and_op(&one, &seen, MPI_LONG, peer, size, MPI_SUM, handle);
		MPI_Win_flush(peer, handle);
	}
	MPI_Win_unlock_all(handle);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int peer = 0; peer < size; peer++)
		expect(window[peer] == 100 * peer + rank, "what was put", peer);
	expect(window[size] == size, "a counter", 0);
	MPI_Win_free(&handle);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	sums();
	ring();
	puts_and_atomics();
	if (!rank)
		printf("%d processes agree\n", size);
	MPI_Finalize();
	return 0;
}
