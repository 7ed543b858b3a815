/*
 * The vDSO of a card's programs (vdso(7)): clocks without leaving ring 3. What it computes with is
 * in the page below it (kernel/clock.rs); where that says nothing of now, it makes the system call.
 */
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#define NANOSECONDS 1000000000ull

/* The first words of the page. */
struct page {
    uint64_t sequence; /* odd while the others change */
    uint64_t window;   /* ticks from `base` on for which this holds; 0: never */
    uint64_t base;     /* of the time stamp counter */
    uint64_t rate;     /* nanoseconds a tick, times 2^32 */
    uint64_t monotonic; /* nanoseconds at `base` */
    uint64_t realtime; /* to be added to get CLOCK_REALTIME */
};

extern const volatile struct page clock_page __attribute__((visibility("hidden")));

static long call(long number, long first, long second)
{
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second)
                     : "rcx", "r11", "memory");
    return result;
}

/* CLOCK_MONOTONIC or CLOCK_REALTIME in nanoseconds; 0: ask the kernel. */
static uint64_t now(int realtime)
{
    uint64_t sequence, ticks, window, rate, nanoseconds;
    do {
        uint32_t low, high;
        sequence = __atomic_load_n(&clock_page.sequence, __ATOMIC_ACQUIRE);
        __asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high)::"memory");
        ticks = ((uint64_t)high << 32 | low) - clock_page.base;
        window = clock_page.window;
        rate = clock_page.rate;
        nanoseconds = clock_page.monotonic + (realtime ? clock_page.realtime : 0);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (sequence & 1 || sequence != clock_page.sequence);
    return ticks < window ? nanoseconds + (ticks * rate >> 32) : 0;
}

int __vdso_clock_gettime(clockid_t clock, struct timespec *to)
{
    int realtime = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int monotonic = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE;
    uint64_t time = realtime || monotonic ? now(realtime) : 0;
    if (time == 0)
        return call(SYS_clock_gettime, clock, (long)to);
    to->tv_sec = time / NANOSECONDS;
    to->tv_nsec = time % NANOSECONDS;
    return 0;
}

int __vdso_gettimeofday(struct timeval *to, struct timezone *zone)
{
    uint64_t time = now(1);
    if (time == 0 || to == NULL || zone != NULL)
        return call(SYS_gettimeofday, (long)to, (long)zone);
    to->tv_sec = time / NANOSECONDS;
    to->tv_usec = time % NANOSECONDS / 1000;
    return 0;
}

time_t __vdso_time(time_t *to)
{
    uint64_t time = now(1);
    if (time == 0)
        return call(SYS_time, (long)to, 0);
    if (to != NULL)
        *to = time / NANOSECONDS;
    return time / NANOSECONDS;
}

/* The card's kernel says the same: threads have no place. */
long __vdso_getcpu(unsigned *cpu, unsigned *node, void *unused)
{
    (void)unused;
    if (cpu != NULL)
        *cpu = 0;
    if (node != NULL)
        *node = 0;
    return 0;
}
