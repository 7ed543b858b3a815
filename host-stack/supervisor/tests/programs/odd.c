/* Has something that a checkpoint cannot have, until there is a file `go`; or says that it cannot have it. */
#define _GNU_SOURCE
#include <asm/ldt.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int filter(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Runs another program under the filter. */
static int within(char **arguments) {
    return filter() && execvp(arguments[2], arguments + 2) == 0;
}

static pid_t child;
static int traced(void) {
    child = fork();
    if (child == 0)
        while (1)
            pause();
    return ptrace(PTRACE_SEIZE, child, 0, 0) == 0;
}

static int faults(void) {
    int fd = syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY | O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register part = {.range = {(unsigned long)at, 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    return fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &part) == 0;
}

static int table(void) {
    struct user_desc entry = {.entry_number = 0, .base_addr = 0, .limit = 1, .seg_32bit = 1, .limit_in_pages = 1};
    return syscall(SYS_modify_ldt, 1, &entry, sizeof entry) == 0;
}

static int requests(void) {
    unsigned long context = 0;
    return syscall(SYS_io_setup, 1, &context) == 0;
}

/* For TCP_ZEROCOPY_RECEIVE. */
static int mapped_socket(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED && close(fd) == 0;
}

/* Goes on as a program whose file is gone. */
static int removed(int count, char **arguments) {
    char command[4096];
    if (count > 2)
        return unlink("copy") == 0;
    snprintf(command, sizeof command, "cp %s copy", arguments[0]);
    return system(command) == 0 && execl("copy", "copy", "removed", "again", NULL) == 0;
}

int main(int count, char **arguments) {
    const char *kind = arguments[1];
    int has = strcmp(kind, "filter") == 0        ? filter()
              : strcmp(kind, "within") == 0      ? within(arguments)
              : strcmp(kind, "traced") == 0      ? traced()
              : strcmp(kind, "chroot") == 0      ? mkdir("root", 0755) == 0 && chroot("root") == 0
              : strcmp(kind, "userfaultfd") == 0 ? faults()
              : strcmp(kind, "ldt") == 0         ? table()
              : strcmp(kind, "requests") == 0    ? requests()
              : strcmp(kind, "socket") == 0      ? mapped_socket()
              : strcmp(kind, "removed") == 0     ? removed(count, arguments)
                                                 : syscall(SYS_keyctl, 0, -2, 1) > 0; /* process keyring, made */
    puts(has ? "ready" : "cannot");
    fflush(stdout);
    while (access("go", F_OK) != 0)
        usleep(1000);
    if (child)
        kill(child, SIGKILL);
    puts("right");
    return 0;
}
