/* The first thread ends; others count and have files, until there is a file `go`: the last to end says what became of
 * it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
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
