/* Processes that know of a named semaphore (sem_open(3)) by its name, and count with it until there is a file `go`: the one that
 * has made it has it mapped by a name that it has lost. */
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long *inside;
static long wrong;

/* Nobody else is where it is. */
static void counts(sem_t *semaphore) {
    while (access("go", F_OK) != 0) {
        sem_wait(semaphore);
        *inside += 1;
        usleep(100);
        wrong += *inside != 1;
        *inside -= 1;
        sem_post(semaphore);
    }
}

int main(void) {
    char name[32];
    snprintf(name, sizeof name, "/snaprig-%d", getpid());
    inside = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sem_t *made = sem_open(name, O_CREAT | O_EXCL, 0600, 1);
    pid_t child = fork();
    if (child == 0) {
        sem_close(made);
        sem_t *opened = sem_open(name, 0);
        counts(opened);
        _exit(wrong != 0);
    }
    write(1, "ready\n", 6);
    counts(made);
    int status, value = -1;
    waitpid(child, &status, 0);
    sem_getvalue(made, &value);
    sem_t *again = sem_open(name, 0);
    sem_post(again);
    int more = -1;
    sem_getvalue(made, &more);
    sem_unlink(name);
    puts(status == 0 && wrong == 0 && value == 1 && more == 2 ? "right" : "wrong");
    return 0;
}
