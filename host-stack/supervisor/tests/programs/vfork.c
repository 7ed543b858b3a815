/* A parent that waits in vfork until there is a file `go`, in a process with another thread. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile unsigned long count;

static void *counts(void *unused) {
    while (1)
        count++;
    return NULL;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, counts, NULL);
    pid_t child = vfork();
    if (child == 0) {
        write(1, "ready\n", 6);
        while (access("go", F_OK) != 0)
            usleep(1000);
        execl("/bin/sh", "sh", "-c", "while [ ! -e stop ]; do :; done; exit 7", NULL);
        _exit(1);
    }
    write(1, "gone on\n", 8);
    int status;
    unsigned long before = count;
    while (count == before)
        ;
    write(1, waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7 ? "right\n" : "wrong\n", 6);
    return 0;
}
