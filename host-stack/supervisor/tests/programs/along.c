/* Shared memory of a tree that moves on its machine: what it had, a robust lock that is held meanwhile, and what is written later. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (32 << 20)

struct both {
    pthread_mutex_t lock;
    int tried;
};

static void wait_for(const char *name) {
    while (access(name, F_OK) != 0)
        usleep(1000);
}

static void *shared(int fd) {
    int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0);
    void *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED)
        exit(2);
    return at;
}

int main(void) {
    int fd = memfd_create("along", 0);
    if (fd < 0 || ftruncate(fd, BYTES) != 0)
        return 2;
    unsigned *seen = shared(fd), *nameless = shared(-1);
    struct both *both = shared(-1);
    for (unsigned word = 0; word < BYTES / sizeof *seen; word++)
        seen[word] = nameless[word] = word * 2654435761u;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&both->lock, &attributes);
    pthread_mutex_lock(&both->lock);
    pid_t child = fork();
    if (child == 0) {
        wait_for("go");
        int held = pthread_mutex_trylock(&both->lock);
        __atomic_store_n(&both->tried, 1, __ATOMIC_SEQ_CST);
        int had = held == EBUSY ? pthread_mutex_lock(&both->lock) : held;
        _exit(held != EBUSY || had != 0);
    }
    printf("ready %d %d\n", getpid(), fd);
    fflush(stdout);
    wait_for("go");
    int differ = 0;
    for (unsigned word = 0; word < BYTES / sizeof *seen; word++)
        differ += (seen[word] != word * 2654435761u) + (nameless[word] != word * 2654435761u);
    while (!__atomic_load_n(&both->tried, __ATOMIC_SEQ_CST))
        usleep(1000);
    pthread_mutex_unlock(&both->lock);
    strcpy((char *)seen, "written later");
    int status;
    waitpid(child, &status, 0);
    if (differ != 0 || status != 0) {
        printf("wrong: %d words, child %x\n", differ, status);
        return 1;
    }
    puts("right");
    return 0;
}
