/* System V objects of all kinds, in use by two processes until there is a file `go`: then nothing is lost, nothing is
 * doubled, no call has failed, and all is what it was. What has to be removed is in a file `objects`. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, TEXT = 1 << 16, LAST = 100, LONGEST = 2000 };
/* Semaphores: a lock, tokens, one that nobody gives, two that a process owes, one that was only set, the rest. */
enum { LOCK, TOKENS, NEVER, TAKEN, GIVEN, HELD_LOW, SEMAPHORES = 40 };

struct message {
    long type;
    unsigned number, length;
    unsigned char rest[8192];
};
struct shared {
    volatile unsigned count, twice, of_child, stop;
};

static int segment, removed, lonely, divided, semaphores, unused, queue, still, others, ends[2];
static struct shared *shared;
static pid_t child, holder;

__attribute__((noreturn, format(printf, 1, 2))) static void wrong(const char *format, ...) {
    static char text[TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    printf("wrong: %d: %s: %s\n", getpid(), text, strerror(errno));
    fflush(stdout);
    kill(0, SIGKILL);
    exit(1);
}

static int right(int returned, const char *what) {
    if (returned < 0)
        wrong("%s", what);
    return returned;
}

static void operate(int number, int amount, int flags) {
    struct sembuf operation = {number, amount, flags};
    static int turn;
    /* Neither is made again by itself when a signal comes. */
    if (turn++ % 2)
        right(semop(semaphores, &operation, 1), "semop");
    else
        right(semtimedop(semaphores, &operation, 1, &(struct timespec){1000, 0}), "semtimedop");
}

static void count_up(void) {
    operate(LOCK, -1, SEM_UNDO);
    unsigned count = shared->count;
    if (shared->twice != 2 * count)
        wrong("the lock does not lock: %u %u", count, shared->twice);
    shared->count = count + 1;
    for (volatile int n = 0; n < 300; n++)
        ;
    shared->twice = 2 * (count + 1);
    operate(LOCK, 1, SEM_UNDO);
}

/* Areas of segments. */
static char *areas(void) {
    char line[512], *text = calloc(1, TEXT);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "SYSV"))
            strcat(text, line);
    fclose(maps);
    return text;
}

static void add(char *text, int id, struct ipc_perm *perm) {
    sprintf(text + strlen(text), "%d: key %x mode %o owner %d %d creator %d %d", id, perm->__key, perm->mode, perm->uid,
            perm->gid, perm->cuid, perm->cgid);
}

/* All that the kernel says of all objects that stays. */
static char *objects(void) {
    char *text = calloc(1, TEXT);
    int segments[] = {segment, removed, lonely, divided}, queues[] = {queue, still, others}, sets[] = {semaphores, unused};
    for (int n = 0; n < 4; n++) {
        struct shmid_ds stat;
        right(shmctl(segments[n], IPC_STAT, &stat), "shmctl");
        add(text, segments[n], &stat.shm_perm);
        sprintf(text + strlen(text), " size %zu attached %lu\n", stat.shm_segsz, segments[n] == lonely ? 0 : stat.shm_nattch);
    }
    for (int n = 0; n < 2; n++) {
        struct semid_ds stat;
        right(semctl(sets[n], 0, IPC_STAT, &stat), "semctl");
        add(text, sets[n], &stat.sem_perm);
        sprintf(text + strlen(text), " %lu semaphores, used %d:", stat.sem_nsems, stat.sem_otime != 0);
        for (unsigned long at = n == 0 ? NEVER : 0; at < stat.sem_nsems; at++)
            sprintf(text + strlen(text), " %d by %d,", semctl(sets[n], at, GETVAL), semctl(sets[n], at, GETPID));
        strcat(text, "\n");
    }
    for (int n = 0; n < 3; n++) {
        struct msqid_ds stat;
        right(msgctl(queues[n], IPC_STAT, &stat), "msgctl");
        add(text, queues[n], &stat.msg_perm);
        sprintf(text + strlen(text), " takes %lu, has %lu\n", stat.msg_qbytes, n == 0 ? 0 : stat.msg_qnum);
    }
    return text;
}

static void be_same(const char *before, const char *after) {
    if (strcmp(before, after) != 0)
        wrong("it was\n%sand is\n%s", before, after);
}

static void put(int to, long type, unsigned number, unsigned length) {
    static struct message message;
    message.type = type;
    message.number = number;
    message.length = length;
    for (unsigned n = 0; n < length; n++)
        message.rest[n] = number * 7 + n;
    right(msgsnd(to, &message, 8 + length, 0), "msgsnd");
}

static long take(int from, long type, unsigned number) {
    static struct message message;
    ssize_t bytes = msgrcv(from, &message, sizeof message - sizeof(long), type, 0);
    right(bytes, "msgrcv");
    if (message.number != number || bytes != 8 + message.length)
        wrong("message %u of %zd bytes, not %u", message.number, bytes, number);
    for (unsigned n = 0; n < message.length; n++)
        if (message.rest[n] != (unsigned char)(number * 7 + n))
            wrong("byte %u of message %u", n, number);
    return message.type;
}

static void be_child(void) {
    shared = shmat(segment, NULL, 0);
    const struct shared *watched = shmat(segment, NULL, SHM_RDONLY);
    char *before = areas();
    unsigned n = 0;
    for (; !watched->stop; n++) {
        count_up();
        put(queue, 1 + n % 3, n, n * 37 % LONGEST);
        operate(TOKENS, 1, 0);
        /* By turns this one waits and the other. */
        if (n % 128 < 32)
            usleep(200);
    }
    shared->of_child = n;
    be_same(before, areas());
    put(queue, LAST, n, 1);
    exit(0);
}

/* Owes two, gives 30000 that are to be taken again, and waits for what nobody gives. */
static void be_holder(void) {
    operate(TAKEN, -2, SEM_UNDO);
    operate(GIVEN, 30000, SEM_UNDO);
    operate(HELD_LOW, 32767, SEM_UNDO);
    operate(HELD_LOW, -5, 0);
    right(write(ends[1], "", 1), "write");
    operate(NEVER, -1, 0);
    wrong("it got what nobody gives");
}

int main(void) {
    int key = getpid() << 8 | 0x40000000;
    segment = right(shmget(key, 3 * PAGE + 100, IPC_CREAT | 0666), "shmget");
    removed = right(shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600), "shmget");
    lonely = right(shmget(key + 1, 5 * PAGE, IPC_CREAT | 0660), "shmget");
    divided = right(shmget(IPC_PRIVATE, 8 * PAGE, IPC_CREAT | 0640), "shmget");
    semaphores = right(semget(key, SEMAPHORES, IPC_CREAT | 0660), "semget");
    unused = right(semget(key + 1, 3, IPC_CREAT | 0600), "semget");
    queue = right(msgget(key, IPC_CREAT | 0600), "msgget");
    still = right(msgget(key + 1, IPC_CREAT | 0600), "msgget");
    others = right(msgget(IPC_PRIVATE, IPC_CREAT | 0600), "msgget");
    if (geteuid() == 0) {
        /* Made by one user, given to another. */
        msgctl(others, IPC_RMID, NULL);
        right(seteuid(4711), "seteuid");
        others = right(msgget(IPC_PRIVATE, IPC_CREAT | 0604), "msgget");
        right(seteuid(0), "seteuid");
        struct msqid_ds stat;
        right(msgctl(others, IPC_STAT, &stat), "msgctl");
        stat.msg_perm.uid = 65534;
        right(msgctl(others, IPC_SET, &stat), "msgctl");
    }
    FILE *list = fopen("objects", "w");
    fprintf(list, "m%d m%d m%d m%d s%d s%d q%d q%d q%d", segment, removed, lonely, divided, semaphores, unused, queue,
            still, others);
    fclose(list);
    put(others, 3, 3, 3);

    shared = shmat(segment, (void *)0x100000000000, 0);
    char *gone = shmat(removed, NULL, 0), *parts = shmat(divided, NULL, 0);
    right(shmctl(removed, IPC_RMID, NULL), "shmctl");
    strcpy(gone, "still there");
    for (int n = 0; n < 8; n++)
        sprintf(parts + n * PAGE, "page %d", n);
    munmap(parts + 2 * PAGE, PAGE);
    mprotect(parts + 4 * PAGE, PAGE, PROT_READ);
    char *alone = shmat(lonely, NULL, 0);
    strcpy(alone + 4 * PAGE, "nobody has it");
    *(unsigned *)alone = 0;
    shmdt(alone);

    unsigned short values[SEMAPHORES] = {[LOCK] = 1, [TAKEN] = 5};
    for (int n = HELD_LOW + 1; n < SEMAPHORES; n++)
        values[n] = n * 800;
    right(semctl(semaphores, 0, SETALL, values), "semctl");
    right(semctl(unused, 1, SETVAL, 32767), "semctl");
    for (int n = 0; n < 4; n++)
        put(still, (long[]){5, 1, 5, 9}[n], n, (int[]){0, 1, 8184, 100}[n]);
    struct msqid_ds stat;
    right(msgctl(still, IPC_STAT, &stat), "msgctl");
    stat.msg_qbytes = 9000;
    right(msgctl(still, IPC_SET, &stat), "msgctl");

    right(pipe(ends), "pipe");
    holder = fork();
    if (holder == 0) {
        shmdt(shared);
        shmdt(gone);
        shmdt(parts);
        munmap(parts, 8 * PAGE);
        be_holder();
    }
    child = fork();
    if (child == 0) {
        shmdt(shared);
        shmdt(gone);
        munmap(parts, 8 * PAGE);
        be_child();
    }
    char byte;
    right(read(ends[0], &byte, 1), "read");
    /* The child has attached what it has. */
    unsigned n = 0, own = 0;
    for (; n < 100; n++)
        take(queue, 0, n);
    char *before = objects(), *mapped = areas();
    puts("ready");
    fflush(stdout);
    for (;; n++) {
        if (!shared->stop && access("go", F_OK) == 0)
            shared->stop = 1;
        if (take(queue, 0, n) == LAST)
            break;
        operate(TOKENS, -1, 0);
        count_up();
        own++;
        if (n % 16 == 0) {
            alone = shmat(lonely, NULL, 0);
            if (alone == (char *)-1 || *(unsigned *)alone != n / 16 - 7 || strcmp(alone + 4 * PAGE, "nobody has it") != 0)
                wrong("%u in what nobody has, not %u", alone == (char *)-1 ? 0 : *(unsigned *)alone, n / 16 - 7);
            ++*(unsigned *)alone;
            shmdt(alone);
        }
        if (n % 128 > 96)
            usleep(500);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        wrong("the child ended with %x", status);
    if (shared->count != own + shared->of_child || shared->of_child != n)
        wrong("%u is not %u and %u", shared->count, own, shared->of_child);
    /* The child had two. */
    char *end = strstr(before, "attached 3");
    if (!end)
        wrong("not attached three times: %s", before);
    end[9] = '1';
    be_same(before, objects());
    be_same(mapped, areas());
    if (shmget(key, 0, 0) != segment || semget(key, 0, 0) != semaphores || msgget(key, 0) != queue)
        wrong("numbers of keys");
    if (semctl(semaphores, LOCK, GETVAL) != 1 || semctl(semaphores, TOKENS, GETVAL) != 100)
        wrong("a lock of %d, %d tokens", semctl(semaphores, LOCK, GETVAL), semctl(semaphores, TOKENS, GETVAL));

    /* What a process owes it gives when it dies. */
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    int given[] = {semctl(semaphores, TAKEN, GETVAL), semctl(semaphores, GIVEN, GETVAL), semctl(semaphores, HELD_LOW, GETVAL)};
    if (given[0] != 5 || given[1] != 0 || given[2] != 0)
        wrong("given back: %d %d %d", given[0], given[1], given[2]);

    if (strcmp(gone, "still there") != 0)
        wrong("a removed segment");
    mprotect(parts + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE);
    strcat(parts + 4 * PAGE, "!");
    for (int part = 0; part < 8; part++) {
        char text[16];
        sprintf(text, "page %d%s", part, part == 4 ? "!" : "");
        if (part != 2 && strcmp(parts + part * PAGE, text) != 0)
            wrong("page %d: %s", part, parts + part * PAGE);
    }
    if (take(still, 9, 3) != 9 || take(still, 5, 0) != 5 || take(still, -5, 1) != 1 || take(still, 0, 2) != 5)
        wrong("types of messages");
    if (take(others, 0, 3) != 3)
        wrong("a message of another's");
    shmctl(segment, IPC_RMID, NULL);
    shmctl(lonely, IPC_RMID, NULL);
    shmctl(divided, IPC_RMID, NULL);
    semctl(semaphores, 0, IPC_RMID);
    semctl(unused, 0, IPC_RMID);
    msgctl(queue, IPC_RMID, NULL);
    msgctl(still, IPC_RMID, NULL);
    msgctl(others, IPC_RMID, NULL);
    puts("right");
    return 0;
}
