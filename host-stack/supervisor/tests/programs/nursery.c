/* Four children, each with two threads that count and a pipe to its parent. Who is killed is born again; until there is
 * a file `stop`. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 4 };

static void *counts(void *unused) {
    for (volatile unsigned long n = 0;; n++)
        if (n % 100000 == 0)
            usleep(100);
    return NULL;
}

static pid_t born(void) {
    pid_t child = fork();
    if (child != 0)
        return child;
    pthread_t threads[2];
    for (int n = 0; n < 2; n++)
        pthread_create(&threads[n], NULL, counts, NULL);
    pause();
    _exit(1);
}

int main(void) {
    pid_t children[CHILDREN];
    for (int n = 0; n < CHILDREN; n++)
        children[n] = born();
    write(1, "ready\n", 6);
    int killed = 0, wrong = 0, status;
    while (access("stop", F_OK) != 0) {
        pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended <= 0) {
            usleep(500);
            continue;
        }
        wrong += !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
        killed++;
        for (int n = 0; n < CHILDREN; n++)
            if (children[n] == ended)
                children[n] = born();
    }
    for (int n = 0; n < CHILDREN; n++)
        kill(children[n], SIGKILL);
    for (int n = 0; n < CHILDREN; n++)
        wrong += waitpid(children[n], &status, 0) != children[n];
    wrong += waitpid(-1, &status, 0) != -1 || errno != ECHILD;
    write(1, wrong == 0 && killed > 0 ? "right\n" : "wrong\n", 6);
    return 0;
}
