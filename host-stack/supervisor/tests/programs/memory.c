/* Memory of every kind, which must be what it was when there is a file `go`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                   \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("wrong: %d: %s (errno %d)\n", __LINE__, #what, errno);                                              \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

enum { PAGE = 4096 };

static char *map(size_t pages, int protection, int flags, int fd) {
    char *at = mmap(NULL, pages * PAGE, protection, flags, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static int file_of(const char *name, size_t pages) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    char page[PAGE];
    for (size_t i = 0; i < pages; i++) {
        memset(page, 'a' + i, PAGE);
        CHECK(write(fd, page, PAGE) == PAGE);
    }
    return fd;
}

static sigjmp_buf back;
static void on_fault(int signal) { siglongjmp(back, 1); }

static int faults(volatile char *at) {
    signal(SIGSEGV, on_fault);
    int faulted = sigsetjmp(back, 1);
    if (!faulted)
        *at = 1;
    signal(SIGSEGV, SIG_DFL);
    return faulted;
}

static int deep(int n) {
    volatile char room[PAGE];
    memset((char *)room, n, PAGE);
    return n == 0 ? 0 : deep(n - 1) + room[17] - room[18];
}

int main(void) {
    const int RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS;
    /* A file that has lost its name: pages of it, and changed ones. */
    int fd = file_of("nameless", 4);
    char *nameless = map(4, RW, MAP_PRIVATE, fd), *unread = map(4, PROT_READ, MAP_PRIVATE, fd);
    nameless[PAGE + 5] = '!';
    CHECK(nameless[2 * PAGE] == 'c');
    close(fd);
    unlink("nameless");
    fd = file_of("named", 4);
    char *changed = map(4, RW, MAP_PRIVATE, fd), *shared_file = map(4, RW, MAP_SHARED, fd);
    changed[PAGE] = '!';
    shared_file[2 * PAGE] = '?';
    CHECK(changed[2 * PAGE] == '?');
    close(fd);
    /* Of no protection, with something in it; and guards. */
    char *hidden = map(3, RW, ANON, -1);
    memset(hidden, 'h', 3 * PAGE);
    mprotect(hidden, 3 * PAGE, PROT_NONE);
    char *guarded = map(3, RW, ANON, -1);
    memset(guarded, 'g', 3 * PAGE);
    mprotect(guarded + PAGE, PAGE, PROT_NONE);
    /* Large, and almost empty. */
    char *sparse = map(1 << 26, RW, ANON | MAP_NORESERVE, -1);
    sparse[77l << 30] = 's';
    /* Code that is written at run time: mov eax, 42; ret. */
    char *code = map(1, RW | PROT_EXEC, ANON, -1);
    memcpy(code, "\xb8\x2a\0\0\0\xc3", 6);
    /* Shared with a child. */
    volatile char *shared = map(4, RW, MAP_SHARED | MAP_ANONYMOUS, -1);
    int memfd = memfd_create("mine", 0);
    CHECK(ftruncate(memfd, 4 * PAGE) == 0);
    char *of_memfd = map(4, RW, MAP_SHARED, memfd), *private_of_memfd = map(4, RW, MAP_PRIVATE, memfd);
    strcpy(of_memfd + PAGE, "memfd");
    private_of_memfd[2 * PAGE] = 'p';
    /* It grows into what is free, and keeps off what is not (stack_guard_gap). */
    char *growing = map(2048, PROT_NONE, ANON, -1);
    munmap(growing, 2048 * PAGE);
    growing = mmap(growing + 2000 * PAGE, PAGE, RW, ANON | MAP_FIXED | MAP_GROWSDOWN, -1, 0);
    CHECK(growing != MAP_FAILED);
    growing[0] = 'd';
    char *kept = map(2, RW, ANON, -1);
    memset(kept, 'k', 2 * PAGE);
    madvise(kept, 2 * PAGE, MADV_WIPEONFORK);
    mlock(kept + PAGE, PAGE);
    char *heap = sbrk(3 * PAGE);
    heap[3 * PAGE - 1] = 'e';

    pid_t child = fork();
    if (child == 0) {
        shared[0] = 1;
        while (shared[1] == 0)
            sched_yield();
        of_memfd[3 * PAGE] = 'c';
        shared[2] = 3;
        _exit(9);
    }
    while (shared[0] == 0)
        sched_yield();
    puts("ready");
    fflush(stdout);
    char *top = sbrk(0);
    while (access("go", F_OK) != 0)
        usleep(1000);

    CHECK(nameless[PAGE + 5] == '!' && nameless[PAGE + 6] == 'b' && nameless[2 * PAGE] == 'c' && nameless[0] == 'a');
    CHECK(unread[3 * PAGE + 7] == 'd');
    CHECK(changed[PAGE] == '!' && changed[PAGE + 1] == 'b' && changed[2 * PAGE] == '?' && changed[3 * PAGE] == 'd');
    CHECK(shared_file[2 * PAGE] == '?' && shared_file[0] == 'a');
    CHECK(faults(hidden));
    mprotect(hidden, 3 * PAGE, PROT_READ);
    CHECK(hidden[0] == 'h' && hidden[3 * PAGE - 1] == 'h');
    CHECK(faults(guarded + PAGE) && !faults(guarded) && !faults(guarded + 2 * PAGE) && guarded[1] == 'g');
    CHECK(sparse[77l << 30] == 's' && sparse[78l << 30] == 0);
    CHECK(((int (*)(void))code)() == 42);
    code[1] = 43;
    CHECK(((int (*)(void))code)() == 43);
    shared[1] = 1;
    while (shared[2] == 0)
        sched_yield();
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9);
    char read_back[6] = "";
    CHECK(of_memfd[3 * PAGE] == 'c');
    CHECK(strcmp(of_memfd + PAGE, "memfd") == 0);
    CHECK(pread(memfd, read_back, 6, PAGE) == 6);
    CHECK(read_back[0] == 'm' && read_back[4] == 'd');
    CHECK(private_of_memfd[2 * PAGE] == 'p' && private_of_memfd[PAGE] == 'm' && of_memfd[2 * PAGE] == 0);
    CHECK(growing[0] == 'd');
    growing[-3000] = 'd';
    CHECK(heap[3 * PAGE - 1] == 'e' && sbrk(0) == top && sbrk(64 * PAGE) == top);
    top[60 * PAGE] = 'f';
    CHECK(deep(1500) == 0);
    child = fork();
    if (child == 0)
        _exit(kept[0] == 0 && kept[PAGE] == 0);
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 1);
    CHECK(kept[0] == 'k' && kept[PAGE] == 'k');
    free(malloc(64 << 20));
    puts("right");
    return 0;
}
