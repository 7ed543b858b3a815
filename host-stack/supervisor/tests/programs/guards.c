/* Guard pages (MADV_GUARD_INSTALL, Linux 6.13) in anonymous memory, in a file's, and in a child: touching one is SIGSEGV,
 * what is beside it is there. Says `ready`, and looks when there is a file `go`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 32
#define PAGE 4096
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

static sigjmp_buf back;

static void caught(int signal) {
    siglongjmp(back, signal);
}

/* What is at a page: its first byte; -1: a guard. */
static int at(const volatile unsigned char *memory, int page) {
    return sigsetjmp(back, 1) ? -1 : memory[page * PAGE];
}

static int is_guard(int page) {
    return page == 0 || (page >= 5 && page < 8) || page == PAGES - 1;
}

static void guard(unsigned char *memory) {
    memset(memory, 7, PAGES * PAGE);
    for (int page = 0; page < PAGES; page++)
        if (is_guard(page) && madvise(memory + page * PAGE, PAGE, GUARD_INSTALL) != 0)
            puts("no guards"), fflush(stdout), _exit(0);
}

static int is_right(unsigned char *memory) {
    for (int page = 0; page < PAGES; page++)
        if (at(memory, page) != (is_guard(page) ? -1 : 7))
            return 0;
    return madvise(memory + 6 * PAGE, PAGE, GUARD_REMOVE) == 0 && at(memory, 6) != -1 && at(memory, 5) == -1;
}

int main(void) {
    struct sigaction action = {.sa_handler = caught};
    sigaction(SIGSEGV, &action, NULL);
    int file = open("file", O_RDWR | O_CREAT, 0600);
    if (ftruncate(file, PAGES * PAGE) != 0)
        return 2;
    int writes = PROT_READ | PROT_WRITE;
    unsigned char *all[] = {
        mmap(NULL, PAGES * PAGE, writes, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
        mmap(NULL, PAGES * PAGE, writes, MAP_PRIVATE, file, 0),
        mmap(NULL, PAGES * PAGE, writes, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
    };
    for (int one = 0; one < 3; one++)
        guard(all[one]);
    mprotect(all[2], PAGES * PAGE, PROT_READ);
    pid_t child = fork();
    if (child != 0)
        puts("ready"), fflush(stdout);
    while (access("go", F_OK) != 0)
        usleep(1000);
    int right = is_right(all[0]) && is_right(all[1]) && is_right(all[2]);
    if (child == 0)
        _exit(right);
    int status = 0;
    waitpid(child, &status, 0);
    puts(right && WEXITSTATUS(status) ? "right" : "wrong");
    return 0;
}
