/* The first thread ends; others count and have files, until there is a file `go`: the last to end says what became of
 * it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile unsigned long counts[2];
static char before[64];

static char state(void) {
    char text[512];
    FILE *file = fopen("/proc/self/stat", "r");
    size_t count = fread(text, 1, sizeof text - 1, file);
    text[count] = 0;
    fclose(file);
    return strrchr(text, ')')[2];
}

/* A lock of the process's, whose first thread has ended; who else could have it is a child. */
static int lock(int fd, int command, short kind) {
    struct flock all = {.l_type = kind, .l_whence = SEEK_SET, .l_start = 1, .l_len = 2};
    return fcntl(fd, command, &all) == 0 ? all.l_type : -1;
}

static int is_locked(int fd) {
    pid_t child = fork();
    if (child == 0)
        _exit(lock(fd, F_GETLK, F_WRLCK) == F_WRLCK);
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

static void *counter(void *unused) {
    while (1)
        counts[0]++;
    return NULL;
}

static void *waiter(void *first) {
    pthread_join(*(pthread_t *)first, NULL);
    while (state() != 'Z')
        usleep(100);
    FILE *file = fopen("kept", "w+");
    fputs("kept", file);
    fflush(file);
    if (lock(fileno(file), F_SETLK, F_WRLCK) < 0)
        puts("no lock");
    puts("ready");
    fflush(stdout);
    while (access("go", F_OK) != 0) {
        counts[1]++;
        usleep(1000);
    }
    unsigned long now = counts[0];
    while (counts[0] == now)
        ;
    rewind(file);
    int kept = fgets(before, sizeof before, file) && strcmp(before, "kept") == 0;
    kept = kept && is_locked(fileno(file));
    puts(kept && state() == 'Z' && getpid() != (pid_t)syscall(SYS_gettid) ? "right" : "wrong");
    fflush(stdout);
    _exit(0);
}

int main(void) {
    static pthread_t first, threads[2];
    first = pthread_self();
    pthread_create(&threads[0], NULL, counter, NULL);
    pthread_create(&threads[1], NULL, waiter, &first);
    pthread_exit(NULL);
}
