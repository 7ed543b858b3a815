/* All that a thread and a process can be set to, set, and what the kernel says of it: which must be the same when there
 * is a file `go`. What this kernel or this user may not set stays as it is. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, ROOM = 1 << 16 };
/* linux/prctl.h */
enum { SET_MDWE = 65, GET_MDWE = 66, SET_MERGE = 67, GET_MERGE = 68 };

static char *text;
static size_t length;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(text + length, ROOM - length, format, arguments);
    va_end(arguments);
}

static void file(const char *name) {
    int fd = open(name, O_RDONLY);
    char bytes[4096];
    ssize_t count = read(fd, bytes, sizeof bytes - 1);
    close(fd);
    bytes[count > 0 ? count : 0] = 0;
    say("%s: %s\n", name, bytes);
}

/* Lines of smaps that a checkpoint does not change. */
static void flags_of(void *at) {
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[512], start[32];
    snprintf(start, sizeof start, "%lx-", (unsigned long)at);
    for (int within = 0; fgets(line, sizeof line, smaps);) {
        if (strchr(line, '-') && strchr(line, '-') < line + 17)
            within = strncmp(line, start, strlen(start)) == 0;
        if (within && strncmp(line, "VmFlags", 7) == 0)
            say("%s %s", start, line);
    }
    fclose(smaps);
}

static void of_thread(void) {
    char status[8192], name[16];
    int tsc = 0, death = 0, mode = -1, fd = open("/proc/thread-self/status", O_RDONLY);
    unsigned long nodes[16] = {0};
    status[read(fd, status, sizeof status - 1)] = 0;
    close(fd);
    for (char *line = strtok(status, "\n"); line; line = strtok(NULL, "\n"))
        if (strncmp(line, "Cap", 3) == 0 || strncmp(line, "Uid", 3) == 0 || strncmp(line, "Gid", 3) == 0 ||
            strncmp(line, "NoNew", 5) == 0 || strncmp(line, "Specul", 6) == 0 || (strncmp(line, "Sig", 3) == 0 && line[3] != 'Q'))
            say("%s\n", line);
    prctl(PR_GET_TSC, &tsc);
    prctl(PR_GET_PDEATHSIG, &death);
    prctl(PR_GET_NAME, name);
    syscall(SYS_get_mempolicy, &mode, nodes, 1024, 0, 0);
    say("name %s tsc %d death %d slack %d bits %x mce %d persona %x io %lx policy %d nodes %lx nice %d\n", name, tsc,
        death, prctl(PR_GET_TIMERSLACK), prctl(PR_GET_SECUREBITS), prctl(PR_MCE_KILL_GET, 0, 0, 0, 0),
        personality(0xffffffff), syscall(SYS_ioprio_get, 1, 0), mode, nodes[0], getpriority(PRIO_PROCESS, 0));
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof cpus, &cpus);
    say("cpus %d policy %d\n", CPU_COUNT(&cpus), sched_getscheduler(0));
}

static void set_thread(int n) {
    prctl(PR_SET_NAME, n ? "second" : "first");
    prctl(PR_SET_TIMERSLACK, 77777 + n);
    prctl(PR_SET_PDEATHSIG, 10 + n);
    prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0);
    personality(ADDR_NO_RANDOMIZE | (n ? 0 : UNAME26));
    syscall(SYS_ioprio_set, 1, 0, 2 << 13 | (5 + n)); /* best effort */
    unsigned long node = 1;
    syscall(SYS_set_mempolicy, 2 + n, &node, 1024); /* bind, interleave */
    sched_setscheduler(0, n ? SCHED_BATCH : SCHED_OTHER, &(struct sched_param){0});
    setpriority(PRIO_PROCESS, 0, 3 + n);
    prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0);
    prctl(PR_SET_SECUREBITS, n ? 0x2 : 0x8);
    if (n)
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    else
        setfsuid(4711);
}

static pthread_barrier_t turn;
static void *second(void *unused) {
    set_thread(1);
    pthread_barrier_wait(&turn);
    of_thread();
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    of_thread();
    return NULL;
}

static char *map(int pages, int flags) {
    return mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
}

int main(void) {
    char *before = calloc(1, ROOM), *after = calloc(1, ROOM), *maps[16];
    pthread_barrier_init(&turn, NULL, 2);
    pthread_t thread;
    pthread_create(&thread, NULL, second, NULL);
    set_thread(0);
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(SET_MERGE, 1, 0, 0, 0);
    for (int bit = 1; bit < 256; bit *= 2) /* MEMBARRIER_CMD_REGISTER_...: what it registers for */
        if (bit == 4 || bit == 16 || bit == 64)
            syscall(SYS_membarrier, bit, 0, 0);
    int filter = open("/proc/self/coredump_filter", O_WRONLY);
    write(filter, "0x51", 4);
    close(filter);
    const int advice[] = {MADV_DONTFORK, MADV_DONTDUMP, MADV_WIPEONFORK, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
                          MADV_SEQUENTIAL, MADV_RANDOM, MADV_MERGEABLE};
    for (int n = 0; n < 8; n++)
        madvise(maps[n] = map(2, MAP_PRIVATE), 2 * PAGE, advice[n]);
    mlock(maps[8] = map(2, MAP_PRIVATE), 2 * PAGE);
    mlock2(maps[9] = map(2, MAP_PRIVATE), 2 * PAGE, MLOCK_ONFAULT);
    syscall(462 /* mseal */, maps[10] = map(2, MAP_PRIVATE), 2 * PAGE, 0);
    maps[11] = map(2, 8 /* MAP_DROPPABLE */);
    maps[12] = map(2, MAP_PRIVATE | MAP_NORESERVE);
    unsigned long node = 1;
    syscall(SYS_mbind, maps[13] = map(2, MAP_PRIVATE), 2 * PAGE, 3 /* interleave */, &node, 64, 0);
    syscall(SYS_mbind, maps[14] = map(2, MAP_SHARED), 2 * PAGE, 1 | 1 << 15 /* prefer, static */, &node, 64, 0);
    syscall(SYS_mbind, maps[15] = map(2, MAP_PRIVATE), 2 * PAGE, 4 /* local */, NULL, 0, 0);
    mlockall(MCL_FUTURE | MCL_ONFAULT);
    prctl(SET_MDWE, 1, 0, 0, 0);
    prctl(PR_SET_DUMPABLE, geteuid() == 0 ? 0 : 1); /* else nobody but root may look at it */

    for (int round = 0; round < 2; round++) {
        text = round ? after : before;
        length = 0;
        pthread_barrier_wait(&turn);
        /* What the second says comes first. */
        if (round)
            pthread_join(thread, NULL);
        else
            pthread_barrier_wait(&turn);
        of_thread();
        file("/proc/self/coredump_filter");
        say("thp %d reaper %d merge %d mdwe %d dumpable %d membarrier %lx\n", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 0,
            prctl(GET_MERGE, 0, 0, 0, 0), prctl(GET_MDWE, 0, 0, 0, 0), prctl(PR_GET_DUMPABLE),
            syscall(SYS_membarrier, 512, 0, 0));
        for (int n = 0; n < 16; n++)
            if (maps[n] != MAP_FAILED) {
                int mode = -1;
                unsigned long nodes[16] = {0};
                syscall(SYS_get_mempolicy, &mode, nodes, 1024, maps[n], 2 /* of an address */);
                say("policy %d nodes %lx ", mode, nodes[0]);
                flags_of(maps[n]);
            }
        void *new = map(2, MAP_PRIVATE);
        say("new ");
        char *at = text + length;
        flags_of(new);
        /* Wherever it is. */
        memset(at, 'x', strcspn(at, " "));
        munmap(new, 2 * PAGE);
        if (round == 0) {
            puts("ready");
            fflush(stdout);
            while (access("go", F_OK) != 0)
                usleep(1000);
        }
    }
    if (strcmp(before, after) != 0)
        printf("wrong\n%s\n---\n%s\n", before, after);
    else
        puts("right");
    return 0;
}
