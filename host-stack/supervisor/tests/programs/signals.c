/* Threads in calls that a stop interrupts, signals that wait, timers: nothing of it may be seen to have changed when
 * there is a file `go`. No call may fail with EINTR but for the signals that are sent here. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                                                   \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("wrong: %s:%d: %s (errno %d)\n", __func__, __LINE__, #what, errno);                                 \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define RT(n) (SIGRTMIN + (n))

static int epolled, polled, ppolled;
/* Pairs of sockets; calls on the first of each have a time limit. */
static int to_read[2], to_readv[2], to_write[2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int condition;
static volatile sig_atomic_t handled;
static volatile sig_atomic_t over;

static void handler(int signal, siginfo_t *info, void *context) {
    char here;
    stack_t stack;
    sigaltstack(NULL, &stack);
    if (signal == RT(6) && info->si_value.sival_int == 66 && (stack.ss_flags & SS_ONSTACK) && &here > (char *)stack.ss_sp)
        handled++;
}

static void *in_epoll(void *unused) {
    struct epoll_event event;
    int epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, epolled, &(struct epoll_event){.events = EPOLLIN, .data.u64 = 77});
    CHECK(epoll_wait(epoll, &event, 1, -1) == 1);
    CHECK(event.data.u64 == 77);
    return NULL;
}

static void *in_poll(void *unused) {
    CHECK(poll(&(struct pollfd){.fd = polled, .events = POLLIN}, 1, 600000) == 1);
    return NULL;
}

static void *in_ppoll(void *unused) {
    sigset_t all;
    sigfillset(&all);
    CHECK(ppoll(&(struct pollfd){.fd = ppolled, .events = POLLIN}, 1, &(struct timespec){.tv_sec = 600}, &all) == 1);
    return NULL;
}

static void *in_read(void *fd) {
    unsigned long count;
    CHECK(read(*(int *)fd, &count, 8) == 8);
    CHECK(count == 5);
    return NULL;
}

static void make_pair(int *pair, int limit) {
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct timeval time = {.tv_sec = 600};
    CHECK(setsockopt(pair[0], SOL_SOCKET, limit, &time, sizeof time) == 0);
}

static void *in_timed_read(void *unused) {
    char byte;
    CHECK(read(to_read[0], &byte, 1) == 1 && byte == 'r');
    return NULL;
}

static void *in_timed_readv(void *unused) {
    char byte;
    CHECK(readv(to_readv[0], &(struct iovec){&byte, 1}, 1) == 1 && byte == 'v');
    return NULL;
}

/* Of a byte for which there is no room. */
static void *in_timed_write(void *unused) {
    CHECK(write(to_write[0], "w", 1) == 1);
    return NULL;
}

static void *in_sigsuspend(void *unused) {
    char room[SIGSTKSZ];
    CHECK(sigaltstack(&(stack_t){.ss_sp = room, .ss_size = sizeof room}, NULL) == 0);
    sigset_t all, now;
    sigfillset(&all);
    sigdelset(&all, RT(6));
    CHECK(sigsuspend(&all) == -1 && errno == EINTR);
    CHECK(handled == 1);
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &now) == 0 && sigismember(&now, RT(6)) && sigismember(&now, RT(1)));
    return NULL;
}

static void *in_sigwait(void *unused) {
    sigset_t set;
    siginfo_t info;
    sigemptyset(&set);
    sigaddset(&set, RT(7));
    CHECK(sigtimedwait(&set, &info, &(struct timespec){.tv_sec = 600}) == RT(7));
    CHECK(info.si_value.sival_int == 88 && info.si_code == SI_QUEUE);
    return NULL;
}

static void *in_condition(void *unused) {
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 600;
    pthread_mutex_lock(&mutex);
    while (!condition)
        CHECK(pthread_cond_timedwait(&cond, &mutex, &deadline) == 0);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static void *in_futex(void *word) {
    /* A deadline from now on, which the kernel alone knows. */
    while (*(volatile int *)word == 0) {
        long woken = syscall(SYS_futex, word, 0, 0, &(struct timespec){.tv_sec = 600}, NULL, 0);
        CHECK(woken == 0 || errno == EAGAIN);
    }
    return NULL;
}

static void *in_sleep(void *unused) {
    /* Without the rest, so that nobody can go on by himself. */
    while (!over)
        CHECK(nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL) == 0);
    return NULL;
}

/* A sleep from which nothing but the end of the program wakes. */
static void *in_long_sleep(void *unused) {
    CHECK(nanosleep(&(struct timespec){.tv_sec = 6000}, NULL) == 0);
    CHECK(0);
    return NULL;
}


static int make_timer(int notify, int signal, int value, clockid_t clock, long rest, long interval) {
    int id = -1;
    struct sigevent event = {.sigev_notify = notify, .sigev_signo = signal, .sigev_value.sival_int = value};
    event._sigev_un._tid = gettid();
    CHECK(syscall(SYS_timer_create, clock, &event, &id) == 0);
    struct itimerspec spec = {.it_value.tv_sec = rest, .it_interval.tv_sec = interval};
    CHECK(syscall(SYS_timer_settime, id, 0, &spec, NULL) == 0);
    return id;
}

static void check_timer(int id, long rest, long interval) {
    struct itimerspec spec;
    CHECK(syscall(SYS_timer_gettime, id, &spec) == 0);
    CHECK(spec.it_interval.tv_sec == interval);
    CHECK(rest == 0 ? spec.it_value.tv_sec == 0 : spec.it_value.tv_sec <= rest && spec.it_value.tv_sec > rest - 100);
}

int main(void) {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (int n = 1; n <= 8; n++)
        sigaddset(&blocked, RT(n));
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(RT(6), &action, NULL);

    epolled = eventfd(0, 0), polled = eventfd(0, 0), ppolled = eventfd(0, 0);
    int readfd = eventfd(0, 0), word = 0;
    make_pair(to_read, SO_RCVTIMEO), make_pair(to_readv, SO_RCVTIMEO), make_pair(to_write, SO_SNDTIMEO);
    while (send(to_write[0], "f", 1, MSG_DONTWAIT) == 1)
        ;
    /* The last one never returns. */
    enum { THREADS = 13 };
    pthread_t threads[THREADS];
    void *(*calls[THREADS])(void *) = {in_epoll,   in_poll,      in_ppoll, in_read,  in_sigsuspend,
                                       in_sigwait, in_condition, in_futex, in_sleep, in_timed_read,
                                       in_timed_readv, in_timed_write, in_long_sleep};
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, calls[i], i == 3 ? (void *)&readfd : &word);

    /* Signals that wait, of the process and of this thread. */
    for (int n = 1; n <= 3; n++)
        sigqueue(getpid(), RT(1), (union sigval){.sival_int = 100 + n});
    pthread_sigqueue(pthread_self(), RT(2), (union sigval){.sival_int = 200});
    pthread_kill(pthread_self(), SIGUSR1);

    /* Timers, some of whose numbers are free again. */
    int ids[6];
    for (int i = 0; i < 6; i++)
        ids[i] = make_timer(SIGEV_SIGNAL, RT(3), 300 + i, CLOCK_MONOTONIC, 1000 + i, i);
    syscall(SYS_timer_delete, ids[0]);
    syscall(SYS_timer_delete, ids[3]);
    int directed = make_timer(SIGEV_THREAD_ID, RT(4), 400, CLOCK_BOOTTIME, 2000, 0);
    int silent = make_timer(SIGEV_NONE, 0, 0, CLOCK_REALTIME, 3000, 7);
    int disarmed = make_timer(SIGEV_SIGNAL, RT(5), 500, CLOCK_PROCESS_CPUTIME_ID, 0, 0);
    setitimer(ITIMER_VIRTUAL, &(struct itimerval){.it_value.tv_sec = 500, .it_interval.tv_sec = 9}, NULL);
    prctl(PR_SET_NAME, "first");

    puts("ready");
    fflush(stdout);
    while (access("go", F_OK) != 0)
        sched_yield();

    siginfo_t info;
    for (int n = 1; n <= 3; n++) {
        CHECK(sigtimedwait(&blocked, &info, &(struct timespec){0}) > 0 || 1);
        if (info.si_signo == SIGUSR1) {
            CHECK(info.si_code <= 0 && info.si_pid == getpid());
            n--;
        } else if (info.si_signo == RT(2)) {
            CHECK(info.si_value.sival_int == 200);
            n--;
        } else
            CHECK(info.si_signo == RT(1) && info.si_value.sival_int == 100 + n && info.si_code == SI_QUEUE);
    }
    for (int i = 0; i < 6; i++)
        if (i != 0 && i != 3)
            check_timer(ids[i], 1000 + i, i);
    check_timer(directed, 2000, 0);
    check_timer(silent, 3000, 7);
    check_timer(disarmed, 0, 0);
    struct itimerval interval;
    getitimer(ITIMER_VIRTUAL, &interval);
    CHECK(interval.it_interval.tv_sec == 9 && interval.it_value.tv_sec > 300);
    /* The timers still do what they did. */
    struct itimerspec soon = {.it_value.tv_nsec = 1};
    CHECK(syscall(SYS_timer_settime, directed, 0, &soon, NULL) == 0);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, RT(4));
    CHECK(sigwaitinfo(&one, &info) == RT(4) && info.si_value.sival_int == 400 && info.si_code == SI_TIMER);
    CHECK(syscall(SYS_timer_settime, ids[5], 0, &soon, NULL) == 0);
    sigemptyset(&one);
    sigaddset(&one, RT(3));
    CHECK(sigwaitinfo(&one, &info) == RT(3) && info.si_value.sival_int == 305);

    unsigned long count = 5;
    write(epolled, &count, 8), write(polled, &count, 8), write(ppolled, &count, 8), write(readfd, &count, 8);
    write(to_read[1], "r", 1), write(to_readv[1], "v", 1);
    char byte = 0;
    while (byte != 'w')
        CHECK(read(to_write[1], &byte, 1) == 1);
    pthread_sigqueue(threads[4], RT(6), (union sigval){.sival_int = 66});
    pthread_sigqueue(threads[5], RT(7), (union sigval){.sival_int = 88});
    pthread_mutex_lock(&mutex);
    condition = 1;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&mutex);
    word = 1;
    syscall(SYS_futex, &word, 1, 1, NULL, NULL, 0);
    over = 1;
    for (int i = 0; i < THREADS - 1; i++)
        pthread_join(threads[i], NULL);
    puts("right");
    fflush(stdout);
    _exit(0);
}
