/* A hundred threads, each with a pattern of its own in its vector registers (of as many bits as there are), and one
 * that holds a robust mutex: until there is a file `go`, which only the first looks for. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { THREADS = 100 };
static volatile int over, ready;
static pthread_mutex_t robust;

/* Loads, and stores what is there when it is over: nothing in between touches them. */
__attribute__((target("avx512f"))) static void hold_512(const uint8_t *in, uint8_t *out, uint16_t mask) {
    uint16_t after;
    __asm__ volatile("vmovdqu64 (%1), %%zmm0\n vmovdqu64 64(%1), %%zmm15\n vmovdqu64 128(%1), %%zmm31\n"
                     "kmovw %k4, %%k5\n lock incl %3\n"
                     "1: pause\n cmpl $0, %5\n je 1b\n"
                     "vmovdqu64 %%zmm0, (%2)\n vmovdqu64 %%zmm15, 64(%2)\n vmovdqu64 %%zmm31, 128(%2)\n"
                     "kmovw %%k5, %k0\n"
                     : "=&r"(after)
                     : "r"(in), "r"(out), "m"(ready), "r"((uint32_t)mask), "m"(over)
                     : "xmm0", "xmm15", "xmm31", "k5", "memory");
    out[192] = after == mask;
}

static void hold_128(const uint8_t *in, uint8_t *out) {
    __asm__ volatile("movdqu (%0), %%xmm0\n movdqu 64(%0), %%xmm15\n lock incl %2\n"
                     "1: pause\n cmpl $0, %3\n je 1b\n"
                     "movdqu %%xmm0, (%1)\n movdqu %%xmm15, 64(%1)\n"
                     :
                     : "r"(in), "r"(out), "m"(ready), "m"(over)
                     : "xmm0", "xmm15", "memory");
    out[192] = 1;
}

static void *hold(void *number) {
    intptr_t n = (intptr_t)number;
    uint8_t in[192], out[193] = {0};
    char name[16], now[16];
    snprintf(name, sizeof name, "holds %ld", n);
    prctl(PR_SET_NAME, name);
    cpu_set_t before, after;
    CPU_ZERO(&before);
    CPU_SET(0, &before);
    if (n % 2)
        sched_setaffinity(0, sizeof before, &before);
    sched_getaffinity(0, sizeof before, &before);
    for (int i = 0; i < 192; i++)
        in[i] = n * 7 + i;
    int wide = __builtin_cpu_supports("avx512f");
    if (wide)
        hold_512(in, out, n * 601);
    else
        hold_128(in, out);
    prctl(PR_GET_NAME, now);
    sched_getaffinity(0, sizeof after, &after);
    int same = wide ? memcmp(in, out, 192) == 0 : memcmp(in, out, 16) == 0 && memcmp(in + 64, out + 64, 16) == 0;
    return (void *)(intptr_t)(same && out[192] && strcmp(name, now) == 0 && CPU_EQUAL(&before, &after));
}

static void *dies_with_it(void *unused) {
    pthread_mutex_lock(&robust);
    __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
    while (!over)
        sched_yield();
    return NULL;
}

int main(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attributes);
    pthread_t threads[THREADS], holder;
    for (intptr_t n = 0; n < THREADS; n++)
        pthread_create(&threads[n], NULL, hold, (void *)n);
    pthread_create(&holder, NULL, dies_with_it, NULL);
    while (ready != THREADS + 1)
        sched_yield();
    write(1, "ready\n", 6);
    while (access("go", F_OK) != 0)
        usleep(1000);
    over = 1;
    int right = 0;
    for (int n = 0; n < THREADS; n++) {
        void *same;
        pthread_join(threads[n], &same);
        right += same != NULL;
    }
    pthread_join(holder, NULL);
    int freed = pthread_mutex_lock(&robust) == EOWNERDEAD;
    printf(right == THREADS && freed ? "right\n" : "wrong %d %d\n", right, freed);
    return 0;
}
