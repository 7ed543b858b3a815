//! The card kernel runs real programs: compiled here, run on a card, compared with what they say
//! on Linux.

mod programs;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use snaprig_card_kernel::ExitStatus;
use snaprig_card_platform::{Kind, on_both};

use programs::{check, compile, run, run_with};

const HELLO: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int c, char **v) { printf("%s %s %d\n", getenv("GREETING"), v[2], c); return 7; }
"#;

fn hello_static(kind: Kind) {
    check(
        kind,
        HELLO,
        &["-static"],
        "hello two 3\n",
        ExitStatus::Exited(7),
    );
}

fn hello_static_pie(kind: Kind) {
    check(
        kind,
        HELLO,
        &["-static-pie"],
        "hello two 3\n",
        ExitStatus::Exited(7),
    );
}

fn memory(kind: Kind) {
    let source = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int main() {
  char *p[200]; long sum = 0;
  for (int i = 0; i < 200; i++) { p[i] = malloc(i * 1000 + 1); memset(p[i], i, i * 1000 + 1); }
  for (int i = 0; i < 200; i += 2) free(p[i]);
  for (int i = 1; i < 200; i += 2) { p[i] = realloc(p[i], i * 3000); sum += p[i][i * 1000]; }
  char *m = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  m[4096] = 5; mprotect(m, 1 << 20, PROT_READ); sum += m[4096];
  mprotect(m, 1 << 20, PROT_READ | PROT_WRITE); m[4096] = 6; munmap(m + 8192, 4096);
  m = mremap(m, 8192, 1 << 22, MREMAP_MAYMOVE); sum += m[4096] + m[1 << 21];
  printf("%ld\n", sum); return 0;
}"#;
    check(kind, source, &["-static"], "795\n", ExitStatus::Exited(0));
}

fn threads(kind: Kind) {
    let source = r#"
#include <pthread.h>
#include <stdio.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER; static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static long count; static int go; static __thread int mine;
static void *work(void *a) {
  pthread_mutex_lock(&m); while (!go) pthread_cond_wait(&c, &m); pthread_mutex_unlock(&m);
  for (int i = 0; i < 1000; i++) { pthread_mutex_lock(&m); count++; mine++; pthread_mutex_unlock(&m); }
  return (void *)(long)mine;
}
int main() {
  pthread_t t[6]; long sum = 0; void *r;
  for (int i = 0; i < 6; i++) pthread_create(t + i, 0, work, 0);
  pthread_mutex_lock(&m); go = 1; pthread_cond_broadcast(&c); pthread_mutex_unlock(&m);
  for (int i = 0; i < 6; i++) { pthread_join(t[i], &r); sum += (long)r; }
  printf("%ld %ld\n", count, sum); return 0;
}"#;
    check(
        kind,
        source,
        &["-static", "-pthread"],
        "6000 6000\n",
        ExitStatus::Exited(0),
    );
}

/// Counters of cores that are read, and written a while later, by more threads than there are cores:
/// nothing is lost if a thread that leaves its core in between starts again.
const SEQUENCES: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/rseq.h>
static long counters[64][16];
static struct rseq *area(void) { return (void *)((char *)__builtin_thread_pointer() + __rseq_offset); }
static int add(struct rseq *r, unsigned cpu) {
  __asm__ __volatile__ goto(
    ".pushsection __rseq_cs, \"aw\"\n.balign 32\n3: .long 0, 0\n.quad 1f, 2f - 1f, 4f\n.popsection\n"
    "leaq 3b(%%rip), %%rax\nmovq %%rax, %[cs]\n"
    "1: cmpl %[cpu], %[id]\njne %l[missed]\n"
    "movq %[counter], %%rcx\nmovl $300, %%eax\n5: decl %%eax\njnz 5b\nincq %%rcx\nmovq %%rcx, %[counter]\n2:\n"
    ".pushsection __rseq_fail, \"ax\"\n.byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n4: jmp %l[missed]\n.popsection\n"
    : : [cs] "m"(r->rseq_cs), [id] "m"(r->cpu_id), [cpu] "r"(cpu), [counter] "m"(counters[cpu][0])
    : "memory", "cc", "rax", "rcx" : missed);
  return 1;
missed:
  return 0;
}
static void *work(void *a) {
  struct rseq *r = area();
  for (int i = 0; i < 20000; i++)
    while (!add(r, *(volatile unsigned *)&r->cpu_id_start)) {}
  return a;
}
int main() {
  pthread_t t[9]; long sum = 0; cpu_set_t one;
  for (int i = 0; i < 9; i++) pthread_create(t + i, 0, work, 0);
  for (int i = 0; i < 9; i++) pthread_join(t[i], 0);
  for (int i = 0; i < 64; i++) sum += counters[i][0];
  CPU_ZERO(&one); CPU_SET(1, &one);
  sched_setaffinity(0, sizeof one, &one);
  printf("%d %ld %d\n", __rseq_size > 0, sum, sched_getcpu());
  return 0;
}
"#;

fn restartable_sequences(kind: Kind) {
    let flags = ["-static", "-pthread", "-O1"];
    let expected = "1 180000 1\n";
    check(kind, SEQUENCES, &flags, expected, ExitStatus::Exited(0));
}

fn processes(kind: Kind) {
    let source = r#"
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int c, char **v) {
  if (c == 2) { printf("child %s\n", v[1]); return 3; }
  int p[2], s; char b[64] = {0}; pipe(p);
  if (fork() == 0) { write(p[1], "through the pipe", 16); _exit(5); }
  wait(&s); read(p[0], b, 63); printf("%s %d\n", b, WEXITSTATUS(s)); fflush(stdout);
  if (vfork() == 0) { execl("/proc/self/exe", "again", "executed", (char *)0); _exit(9); }
  wait(&s); printf("%d\n", WEXITSTATUS(s)); return 0;
}"#;
    let expected = "through the pipe 5\nchild executed\n3\n";
    check(kind, source, &["-static"], expected, ExitStatus::Exited(0));
}

fn signals(kind: Kind) {
    let source = r#"
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static sigjmp_buf j; static volatile double d = 1.5;
static void segv(int s, siginfo_t *i, void *u) { siglongjmp(j, (long)i->si_addr); }
static void usr(int s) { d *= 2; write(1, "handler\n", 8); }
int main() {
  struct sigaction a = {.sa_sigaction = segv, .sa_flags = SA_SIGINFO}; sigaction(SIGSEGV, &a, 0);
  int at = sigsetjmp(j, 1); if (!at) *(volatile int *)16 = 1; printf("fault at %d\n", at); fflush(stdout);
  signal(SIGUSR1, usr); double x = d * 3; raise(SIGUSR1); printf("%g %g\n", x, d);
  struct timespec t = {0, 2000000}; printf("%d\n", nanosleep(&t, 0));
  sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR2); sigprocmask(SIG_BLOCK, &s, 0); raise(SIGUSR2);
  printf("%d\n", sigwaitinfo(&s, 0) == SIGUSR2); fflush(stdout);
  signal(SIGSEGV, SIG_DFL); *(volatile int *)0 = 1; return 0;
}"#;
    let expected = "fault at 16\nhandler\n4.5 3\n0\n1\n";
    check(
        kind,
        source,
        &["-static"],
        expected,
        ExitStatus::Signaled(libc::SIGSEGV),
    );
}

fn divide_by_zero(kind: Kind) {
    let source = "int main(int c, char **v) { volatile int z = c - 3; return c / z; }";
    check(
        kind,
        source,
        &["-static"],
        "",
        ExitStatus::Signaled(libc::SIGFPE),
    );
}

fn capture_and_restore(kind: Kind) {
    let source = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
struct capture { int fd; unsigned flags; }; struct restore { int fd, stdio[3]; };
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER; static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static volatile int go; static char *heap; static volatile int spins; static int p[2];
static void *waits(void *a) { pthread_mutex_lock(&m); while (!go) pthread_cond_wait(&c, &m); pthread_mutex_unlock(&m); return (void *)(long)heap[100000]; }
static void *spinner(void *a) { double x = 1.5; while (!go) { spins++; x = x * 1.0000001; } return (void *)(long)(x >= 1.5); }
static void *reads(void *a) { char b; read(p[0], &b, 1); return (void *)(long)b; }
int main() {
  if (fork() == 0) {
    pthread_t t[3]; void *r; long sum = 0; pipe(p);
    heap = calloc(1, 1 << 20); heap[100000] = 42;
    pthread_create(t, 0, waits, 0); pthread_create(t + 1, 0, spinner, 0); pthread_create(t + 2, 0, reads, 0);
    while (spins < 1000) ;
    int s = open("/dev/card/checkpoint", O_RDWR), f = open("/tmp/image", O_CREAT | O_RDWR, 0600);
    struct capture a = {f, 0}; int n = ioctl(s, 0x40086b01, &a);
    if (n == 0) _exit(3); if (n < 0) { perror("capture"); _exit(9); }
    pthread_mutex_lock(&m); go = 1; pthread_cond_broadcast(&c); pthread_mutex_unlock(&m); write(p[1], "\7", 1);
    for (int i = 0; i < 3; i++) { pthread_join(t[i], &r); sum += (long)r; }
    printf("restored %d %ld\n", n, sum); fflush(stdout); _exit(4);
  }
  int st; wait(&st); printf("%d\n", WEXITSTATUS(st)); fflush(stdout);
  int s = open("/dev/card/checkpoint", O_RDWR), f = open("/tmp/image", O_RDONLY);
  struct restore a = {f, {0, 1, 2}}; int pid = ioctl(s, 0x40106b02, &a);
  if (pid < 0) { perror("restore"); return 1; }
  int w = waitpid(pid, &st, 0); printf("%d %d\n", w == pid, WEXITSTATUS(st)); fflush(stdout);
  f = open("/tmp/image", O_RDWR); char b; pread(f, &b, 1, 50000); b ^= 4; pwrite(f, &b, 1, 50000);
  a.fd = f; printf("%d\n", ioctl(s, 0x40106b02, &a)); return 0;
}"#;
    let expected = "3\nrestored 1 50\n1 4\n-1\n";
    check(
        kind,
        source,
        &["-static", "-pthread"],
        expected,
        ExitStatus::Exited(0),
    );
}

/// A write to a full pipe that has written a part, and a signal with SA_RESTART: each byte arrives
/// once, and the call says how far it came (write(2)).
fn interrupted_write(kind: Kind) {
    let source = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>
static int p[2]; static char data[100000]; static volatile int hit;
static void wait_full() { int n = 0; while (n < 65536) { usleep(1000); ioctl(p[0], FIONREAD, &n); } }
static void on(int s) { hit = 1; }
static void *reader(void *a) {
  static char b[65536]; long n, t = 0;
  wait_full(); pthread_kill(*(pthread_t *)a, SIGUSR1); while (!hit) usleep(1000);
  while ((n = read(p[0], b, sizeof b)) > 0) t += n;
  return (void *)t;
}
int main() {
  struct sigaction sa = {.sa_handler = on, .sa_flags = SA_RESTART}; sigaction(SIGUSR1, &sa, 0); pipe(p);
  pthread_t me = pthread_self(), r; void *got; pthread_create(&r, 0, reader, &me);
  long first = write(p[1], data, sizeof data), rest = write(p[1], data + first, sizeof data - first);
  close(p[1]); pthread_join(r, &got); printf("%ld %ld %ld\n", first, rest, (long)got); return 0;
}"#;
    check(
        kind,
        source,
        &["-static", "-pthread"],
        "65536 34464 100000\n",
        ExitStatus::Exited(0),
    );
}

/// A process is captured while a write waits with a part done. The restored call returns that part;
/// in the process that goes on it completes.
fn captured_write(kind: Kind) {
    let source = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
struct capture { int fd; unsigned flags; }; struct restore { int fd, stdio[3]; };
static int p[2]; static char data[100000];
static void *writer(void *a) { long n = write(p[1], data, sizeof data); close(p[1]); return (void *)n; }
int main() {
  int st;
  if (fork() == 0) {
    static char b[65536]; pthread_t t; void *wrote; long n, got = 0; pipe(p);
    pthread_create(&t, 0, writer, 0);
    int full = 0; while (full < 65536) { usleep(1000); ioctl(p[0], FIONREAD, &full); }
    int s = open("/dev/card/checkpoint", O_RDWR), f = open("/tmp/image", O_CREAT | O_RDWR, 0600);
    struct capture a = {f, 0}; int restored = ioctl(s, 0x40086b01, &a);
    while ((n = read(p[0], b, sizeof b)) > 0) got += n;
    pthread_join(t, &wrote); printf("%d %ld %ld\n", restored, (long)wrote, got); fflush(stdout); _exit(0);
  }
  wait(&st);
  int s = open("/dev/card/checkpoint", O_RDWR), f = open("/tmp/image", O_RDONLY);
  struct restore a = {f, {0, 1, 2}}; waitpid(ioctl(s, 0x40106b02, &a), &st, 0); return 0;
}"#;
    check(
        kind,
        source,
        &["-static", "-pthread"],
        "0 100000 100000\n1 65536 65536\n",
        ExitStatus::Exited(0),
    );
}

/// What is not found by the path that it was opened by: a deleted file and its successor, a renamed
/// one, a memfd that is mapped and shared, a text of /proc. And timers go on counting.
fn captured_files(kind: Kind) {
    let source = r#"
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>
struct capture { int fd; unsigned flags; }; struct restore { int fd, stdio[3]; };
static int make(const char *path, const char *text) {
  int f = open(path, O_CREAT | O_RDWR | O_EXCL, 0600); write(f, text, strlen(text)); return f;
}
static void show(const char *what, int f) {
  char b[64] = {0}; pread(f, b, 63, 0); printf("%s %s at %ld\n", what, b, lseek(f, 0, SEEK_CUR));
}
int main() {
  int st;
  if (fork() == 0) {
    int gone = make("/tmp/a", "gone"); unlink("/tmp/a"); int new = make("/tmp/a", "its successor");
    int moved = make("/tmp/b", "moved"); rename("/tmp/b", "/tmp/c");
    int m = memfd_create("m", 0); ftruncate(m, 20 << 20); lseek(m, 7, SEEK_SET);
    char *p = mmap(0, 20 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, m, 0); strcpy(p, "memfd"); strcpy(p + (19 << 20), "far");
    int text = open("/proc/self/cmdline", O_RDONLY);
    int once = timerfd_create(CLOCK_MONOTONIC, 0), often = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec soon = {{0, 0}, {0, 300000000}}, tick = {{0, 1000000}, {0, 1000000}};
    timerfd_settime(once, 0, &soon, 0); timerfd_settime(often, 0, &tick, 0); usleep(50000);
    int ep = epoll_create1(0); struct epoll_event e = {EPOLLIN}; epoll_ctl(ep, EPOLL_CTL_ADD, once, &e);
    int s = open("/dev/card/checkpoint", O_RDWR), f = open("/tmp/image", O_CREAT | O_RDWR, 0600);
    struct capture a = {f, 0}; int n = ioctl(s, 0x40086b01, &a);
    if (n == 0) _exit(3); if (n < 0) { perror("capture"); _exit(9); }
    show("gone", gone); show("new", new); show("moved", moved); show("memfd", m); show("text", text);
    strcpy(p + 1, "apped"); show("memfd", m); printf("%s\n", p + (19 << 20));
    uint64_t ticks, hits; read(often, &ticks, 8); printf("%d\n", ticks >= 50 && ticks < 100000);
    int ready = epoll_wait(ep, &e, 1, 10000); read(once, &hits, 8); printf("%d %ld\n", ready, (long)hits);
    fflush(stdout); _exit(4);
  }
  wait(&st); printf("%d\n", WEXITSTATUS(st)); fflush(stdout);
  int s = open("/dev/card/checkpoint", O_RDWR), f = open("/tmp/image", O_RDONLY);
  struct restore a = {f, {0, 1, 2}}; int pid = ioctl(s, 0x40106b02, &a);
  if (pid < 0) { perror("restore"); return 1; }
  waitpid(pid, &st, 0); printf("%d\n", WEXITSTATUS(st)); return 0;
}"#;
    let expected = "3\ngone gone at 4\nnew its successor at 13\nmoved moved at 5\nmemfd memfd at 7\n\
                    text program at 0\nmemfd mapped at 7\nfar\n1\n1 1\n4\n";
    check(kind, source, &["-static"], expected, ExitStatus::Exited(0));
}

/// A FIFO, signals and a process behind descriptors, limits, affinity, and a lock that is waited for
/// while its owner is captured.
fn captured_objects(kind: Kind) {
    let source = r#"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
struct capture { int fd; unsigned flags; }; struct restore { int fd, stdio[3]; };
static pthread_mutex_t lock; static volatile int tid;
static void *waiter(void *unused) {
  tid = gettid(); pthread_mutex_lock(&lock); puts("handed over"); pthread_mutex_unlock(&lock); return 0;
}
int main() {
  int st;
  if (fork() == 0) {
    mkfifo("/tmp/fifo", 0600); int fifo = open("/tmp/fifo", O_RDWR); write(fifo, "in it", 5);
    sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR1); sigprocmask(SIG_BLOCK, &set, 0);
    int signals = signalfd(-1, &set, 0); kill(getpid(), SIGUSR1);
    int child = fork(); if (child == 0) { pause(); _exit(0); }
    int process = syscall(SYS_pidfd_open, child, 0);
    struct rlimit limit = {77, 99}; setrlimit(RLIMIT_NOFILE, &limit);
    cpu_set_t one; CPU_ZERO(&one); CPU_SET(2, &one); sched_setaffinity(0, sizeof one, &one);
    pthread_mutexattr_t attr; pthread_mutexattr_init(&attr); pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&lock, &attr); pthread_mutex_lock(&lock);
    pthread_t thread; pthread_create(&thread, 0, waiter, 0);
    // It waits once the lock's word says so.
    while (!(*(volatile int *)&lock & 0x80000000)) sched_yield();
    int s = open("/dev/card/checkpoint", O_RDWR), f = open("/tmp/image", O_CREAT | O_RDWR, 0600);
    struct capture a = {f, 0}; int n = ioctl(s, 0x40086b01, &a);
    if (n == 0) { kill(child, SIGKILL); waitpid(child, 0, 0); _exit(3); } if (n < 0) { perror("capture"); _exit(9); }
    char text[9] = {0}; read(fifo, text, 8); write(fifo, "again", 5); printf("%s ", text); read(fifo, text, 8); puts(text);
    struct signalfd_siginfo info; read(signals, &info, sizeof info); printf("%d\n", info.ssi_signo == SIGUSR1);
    struct pollfd p = {process, POLLIN}; n = poll(&p, 1, 0);
    int sent = syscall(SYS_pidfd_send_signal, process, SIGKILL, 0, 0); printf("%d %d %d\n", n, sent, poll(&p, 1, 20000));
    getrlimit(RLIMIT_NOFILE, &limit); sched_getaffinity(0, sizeof one, &one);
    printf("%d %d %d\n", (int)limit.rlim_cur, CPU_COUNT(&one), CPU_ISSET(2, &one)); fflush(stdout);
    pthread_mutex_unlock(&lock); pthread_join(thread, 0); fflush(stdout); _exit(4);
  }
  wait(&st); printf("%d\n", WEXITSTATUS(st)); fflush(stdout);
  int s = open("/dev/card/checkpoint", O_RDWR), f = open("/tmp/image", O_RDONLY);
  struct restore a = {f, {0, 1, 2}}; int pid = ioctl(s, 0x40106b02, &a);
  if (pid < 0) { perror("restore"); return 1; }
  waitpid(pid, &st, 0); printf("%d\n", WEXITSTATUS(st)); return 0;
}"#;
    let expected = "3\nin it again\n1\n0 0 1\n77 1 1\nhanded over\n4\n";
    let flags = ["-static", "-pthread"];
    check(kind, source, &flags, expected, ExitStatus::Exited(0));
}

/// What could not be restored is not captured: more in pipes than fits into an image, and a thread
/// whose registers no thread may start with.
fn refused_capture(kind: Kind) {
    let source = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>
struct capture { int fd; unsigned flags; };
static char data[65536];
static void capture() {
  int s = open("/dev/card/checkpoint", O_RDWR), f = open("/tmp/image", O_CREAT | O_RDWR | O_TRUNC, 0600);
  struct capture a = {f, 0}; int n = ioctl(s, 0x40086b01, &a);
  printf("%d %d %ld\n", n, n < 0 ? errno : 0, n < 0 ? lseek(f, 0, SEEK_END) : 0); close(s); close(f);
}
int main() {
#ifdef BASES
  asm volatile("wrgsbase %0" : : "r"(0xffff800000000000)); capture(); asm volatile("wrgsbase %0" : : "r"(0L));
#endif
  capture();
  int p[2]; for (int i = 0; i < 260; i++) { pipe(p); write(p[1], data, sizeof data); }
  capture(); return 0;
}"#;
    let mut expected = format!("0 0 0\n-1 {} 0\n", libc::EFBIG);
    let mut flags = vec!["-static"];
    // With ptrace(2) a thread cannot go on with such a base at all.
    if matches!(kind, Kind::Kvm) {
        expected.insert_str(0, &format!("-1 {} 0\n", libc::EOVERFLOW));
        flags.push("-DBASES");
    }
    check(kind, source, &flags, &expected, ExitStatus::Exited(0));
}

/// A base out of user space, which ptrace(2) cannot set: the process ends, and its card goes on.
fn high_base(kind: Kind) {
    let source = r#"
#include <pthread.h>
#include <unistd.h>
static void *again(void *a) { execl("/proc/self/exe", "program", (char *)0); return 0; }
int main(int c, char **v) {
  // The program that goes wrong was started by a thread that was not the first: it has changed its id.
  if (c > 1) { pthread_t t; pthread_create(&t, 0, again, 0); pthread_join(t, 0); _exit(9); }
  asm volatile("wrgsbase %0" : : "r"(0xffff800000000000)); write(1, "on\n", 3); _exit(3);
}"#;
    let (expected, status) = match kind {
        Kind::Kvm => ("on\n", ExitStatus::Exited(3)),
        Kind::Ptrace => ("on\n", ExitStatus::Signaled(libc::SIGKILL)),
    };
    check(kind, source, &["-static", "-pthread"], expected, status);
}

/// A capture that a signal interrupts is given up, whatever SA_RESTART says, and the threads that it
/// stopped run on.
fn interrupted_capture(kind: Kind) {
    let source = r#"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
struct capture { int fd; unsigned flags; };
static volatile long spins; static volatile int hits;
static void on(int s) { hits++; }
static void *spinner(void *a) { for (;;) spins++; }
int main() {
  struct sigaction sa = {.sa_handler = on, .sa_flags = SA_RESTART}; sigaction(SIGUSR1, &sa, 0);
  int p[2], status; pipe(p); pid_t child = fork();
  if (child > 0) {
    int full = 0; while (full < 65536) { usleep(1000); ioctl(p[0], FIONREAD, &full); }
    kill(child, SIGUSR1); waitpid(child, &status, 0); return WEXITSTATUS(status);
  }
  pthread_t t; pthread_create(&t, 0, spinner, 0); while (spins < 1000) ;
  int s = open("/dev/card/checkpoint", O_RDWR); struct capture a = {p[1], 0};
  int n = ioctl(s, 0x40086b01, &a), e = errno; long before = spins; usleep(100000);
  printf("%d %d %d %d\n", n, e == EINTR, hits, spins > before);
  // Nobody but those that a capture stops would read it: that is refused.
  int own[2]; pipe(own); a.fd = own[1]; n = ioctl(s, 0x40086b01, &a); printf("%d %d\n", n, errno == EDEADLK);
  fflush(stdout); _exit(0);
}"#;
    check(
        kind,
        source,
        &["-static", "-pthread"],
        "-1 1 1 1\n-1 1\n",
        ExitStatus::Exited(0),
    );
}

/// Files and threads together: broken sockets, an event loop, timers, descriptors by name.
fn files(kind: Kind) {
    let source = r#"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>
static volatile int pipes; static int ev, pr[2]; static char data[300000];
static void on(int s) { pipes++; }
static void *wakes(void *a) { for (int i = 0; i < 1000; i++) { eventfd_write(ev, 1); *(volatile int *)a = i; } return 0; }
static void *drain(void *a) { long n, t = 0; char b[5000]; while ((n = read(pr[0], b, sizeof b)) > 0) t += n; return (void *)t; }
int main() {
  signal(SIGPIPE, on); int s[2]; socketpair(AF_UNIX, SOCK_STREAM, 0, s); close(s[1]);
  int r = send(s[0], "x", 1, MSG_NOSIGNAL); printf("%d %d ", r, pipes);
  r = send(s[0], "x", 1, 0); printf("%d %d ", r, pipes); r = write(s[0], "x", 1); printf("%d %d\n", r, pipes);
  // The waker of an event loop never reads its eventfd.
  struct epoll_event e = {EPOLLIN | EPOLLET}; int ep = epoll_create1(0); ev = eventfd(0, EFD_NONBLOCK);
  epoll_ctl(ep, EPOLL_CTL_ADD, ev, &e); volatile int last = 0; pthread_t t; pthread_create(&t, 0, wakes, (void *)&last);
  int rounds = 0; while (last < 999 && epoll_wait(ep, &e, 1, 5000) == 1) rounds++;
  pthread_join(t, 0); printf("%d %d\n", last, rounds > 0);
  // A timer, waited for in epoll and by reading.
  int tf = timerfd_create(CLOCK_MONOTONIC, 0); struct itimerspec tick = {{0, 20000000}, {0, 20000000}}, left; uint64_t n;
  timerfd_settime(tf, 0, &tick, 0); e.events = EPOLLIN; ep = epoll_create1(0); epoll_ctl(ep, EPOLL_CTL_ADD, tf, &e);
  printf("%d ", epoll_wait(ep, &e, 1, 5000)); read(tf, &n, 8); printf("%d ", n >= 1); read(tf, &n, 8);
  timerfd_gettime(tf, &left); printf("%d %d\n", n >= 1, left.it_interval.tv_nsec == 20000000 && left.it_value.tv_nsec <= 20000000);
  // A file through a pipe, by sendfile and by pwritev.
  int f = open("/tmp/ev-file", O_CREAT | O_RDWR | O_TRUNC, 0600); struct iovec v[2] = {{data, 100000}, {data + 100000, 200000}};
  for (int i = 0; i < 300000; i++) data[i] = i % 251;
  printf("%zd ", pwritev(f, v, 2, 0)); pipe(pr); void *got; pthread_create(&t, 0, drain, 0); off_t at = 10;
  while (sendfile(pr[1], f, &at, 1 << 20) > 0) ; printf("%ld ", (long)at); close(pr[1]); pthread_join(t, &got); printf("%ld\n", (long)got);
  // Names of descriptors.
  char b[100] = {0}, name[64]; sprintf(name, "/proc/self/fd/%d", f); readlink(name, b, 99); int fds = 0;
  DIR *d = opendir("/proc/self/fd"); struct dirent *de; while ((de = readdir(d))) if (de->d_name[0] != '.' && atoi(de->d_name) == f) fds++;
  int again = open(name, O_RDONLY), left_in = 0; ioctl(again, FIONREAD, &left_in); printf("%s %d %d\n", b, fds, left_in);
  unlink("/tmp/ev-file"); return 0;
}
"#;
    let expected = "-1 0 -1 1 -1 2\n999 1\n1 1 1 1\n300000 300000 299990\n/tmp/ev-file 1 300000\n";
    check(
        kind,
        source,
        &["-static", "-pthread"],
        expected,
        ExitStatus::Exited(0),
    );
}

/// A sleep that a signal interrupts says what was left of it (nanosleep(2)).
fn interrupted_sleep(kind: Kind) {
    let source = r#"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static void on(int s) {}
int main() {
  signal(SIGUSR1, on); struct timespec t = {100, 0}, left = {0, 0};
  if (fork() == 0) { usleep(100000); kill(getppid(), SIGUSR1); _exit(0); }
  int n = nanosleep(&t, &left); printf("%d %d %d\n", n, errno == EINTR, left.tv_sec > 50 && left.tv_sec < 100);
  return 0;
}"#;
    check(
        kind,
        source,
        &["-static"],
        "-1 1 1\n",
        ExitStatus::Exited(0),
    );
}

/// The calls that wait with a signal mask of their own: the signal interrupts them and nothing else,
/// and stays pending if a file is ready (select(2), "The reason that pselect() is needed").
fn wait_masks(kind: Kind) {
    let source = r#"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int hits; static sigset_t open_mask; static struct pollfd f; static int ep;
static void on(int s) { hits++; }
static int once(int which, int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000L}; struct epoll_event e; fd_set r; FD_ZERO(&r); FD_SET(f.fd, &r);
  switch (which) {
    case 0: return ppoll(&f, 1, &t, &open_mask);
    case 1: return pselect(f.fd + 1, &r, 0, 0, &t, &open_mask);
    case 2: return epoll_pwait(ep, &e, 1, ms, &open_mask);
    default: return syscall(441, ep, &e, 1, &t, &open_mask, 8);
  }
}
static const char *blocked() { sigset_t s; sigprocmask(SIG_BLOCK, 0, &s); return sigismember(&s, SIGUSR1) ? "blocked" : "open"; }
int main() {
  int p[2]; pipe(p); f.fd = p[0]; f.events = POLLIN; sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR1);
  ep = epoll_create1(0); struct epoll_event e = {EPOLLIN}; epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e);
  signal(SIGUSR1, on); sigprocmask(SIG_BLOCK, &s, &open_mask);
  for (int w = 0; w < 4; w++) {
    hits = 0; if (fork() == 0) { usleep(100000); kill(getppid(), SIGUSR1); _exit(0); }
    int n = once(w, 20000), interrupted = errno == EINTR, m = hits; wait(0);
    raise(SIGUSR1); write(p[1], "x", 1); int ready = once(w, 20000), k = hits;
    char b; read(p[0], &b, 1); errno = 0; int now = once(w, 0), late = errno;
    printf("%d %d %d, %d %d, %d %d, %s\n", n, interrupted, m, ready, k, now, late == EINTR, blocked());
    if (hits == 1) once(w, 20000);
    printf("%d %d\n", hits, once(w, 10));
  }
  return 0;
}"#;
    // epoll does not look for signals if it is not to wait.
    let polls = "-1 1 1, 1 1, -1 1, blocked\n2 0\n";
    let epolls = "-1 1 1, 1 1, 0 0, blocked\n2 0\n";
    let expected = [polls, polls, epolls, epolls].concat();
    check(kind, source, &["-static"], &expected, ExitStatus::Exited(0));
}

fn rust_std(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("r.rs"), dir.path().join("r"));
    let text = r#"
use std::{process::Command, sync::mpsc, thread, io::{Read, Write}, os::unix::net::{UnixListener, UnixStream}};
fn main() {
    if std::env::args().len() == 2 { println!("child"); std::process::exit(4) }
    let (send, receive) = mpsc::channel();
    let t: Vec<_> = (0..4u64).map(|i| { let s = send.clone(); thread::spawn(move || s.send(i * i).unwrap()) }).collect();
    drop(send);
    println!("{}", receive.iter().sum::<u64>());
    t.into_iter().for_each(|t| t.join().unwrap());
    let out = Command::new("/proc/self/exe").arg("x").output().unwrap();
    println!("{:?} {:?}", String::from_utf8_lossy(&out.stdout), out.status.code());
    let l = UnixListener::bind("/run/s").unwrap();
    let t = thread::spawn(move || { let mut s = l.accept().unwrap().0; let mut b = vec![0; 300000]; s.read_exact(&mut b).unwrap(); s.write_all(b"ok").unwrap(); b[299999] });
    let mut c = UnixStream::connect("/run/s").unwrap(); c.write_all(&vec![9; 300000]).unwrap();
    let mut r = String::new(); c.read_to_string(&mut r).unwrap(); println!("{r} {}", t.join().unwrap());
    std::fs::write("/tmp/f", "contents").unwrap(); println!("{}", std::fs::read_to_string("/tmp/f").unwrap());
    thread::sleep(std::time::Duration::from_millis(1));
    std::panic::catch_unwind(|| panic!("caught")).unwrap_err();
    println!("{}", std::fs::read_dir("/tmp").unwrap().count());
}"#;
    std::fs::write(&source, text).unwrap();
    let status = Command::new("rustc")
        .args(["-Ctarget-feature=+crt-static", "--edition=2021", "-o"])
        .arg(&program)
        .arg(&source)
        .status()
        .unwrap();
    assert!(status.success());
    let ran = run(kind, &program, &["a", "b"]);
    let out: Vec<_> = ran
        .out
        .lines()
        .filter(|l| {
            !l.contains("panicked")
                && !l.contains("caught")
                && !l.contains("RUST_BACKTRACE")
                && !l.is_empty()
        })
        .collect();
    assert_eq!(
        out.join("|"),
        "14|\"child\\n\" Some(4)|ok 9|contents|1",
        "{}",
        ran.out
    );
    assert_eq!(ran.status, ExitStatus::Exited(0));
}

/// Timers reach a thread that makes no system call, tell what they were told to, and go on after a
/// restore.
fn timers(kind: Kind) {
    let source = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
struct capture { int fd; unsigned flags; }; struct restore { int fd, stdio[3]; };
static volatile int alarms, value, code;
static void on_alarm(int s) { alarms++; }
static void on_timer(int s, siginfo_t *i, void *c) { value = i->si_value.sival_int; code = i->si_code; }
int main() {
  struct itimerval none = {0}, often = {{0, 2000}, {0, 2000}}, old; struct itimerspec soon = {{0}, {0, 2000000}}, left;
  int st;
  signal(SIGALRM, on_alarm);
  setitimer(ITIMER_REAL, &often, 0); while (alarms < 3) ; setitimer(ITIMER_REAL, &none, &old);
  printf("beat %d\n", old.it_interval.tv_usec);
  alarm(100); int was = alarm(0); printf("left %d %d\n", was, alarm(0));
  struct sigaction a = {.sa_sigaction = on_timer, .sa_flags = SA_SIGINFO}; sigaction(SIGRTMIN, &a, 0);
  struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN, .sigev_value.sival_int = 77}; timer_t t;
  timer_create(CLOCK_MONOTONIC, &e, &t); timer_settime(t, 0, &soon, 0); while (!value) ;
  timer_gettime(t, &left); printf("timer %d %d %ld\n", value, code == SI_TIMER, left.it_value.tv_nsec);
  printf("bad %d %d\n", timer_settime((timer_t)99, 0, &soon, 0), setitimer(ITIMER_REAL + 9, &often, 0));
  timer_delete(t); alarms = 0; alarm(1); int paused = pause(); printf("paused %d %d\n", paused, alarms);
  if (fork() == 0) {
    alarms = 0; often.it_value.tv_usec = 200000; setitimer(ITIMER_REAL, &often, 0);
    int s = open("/dev/card/checkpoint", O_RDWR), f = open("/tmp/image", O_CREAT | O_RDWR, 0600);
    struct capture c = {f, 0}; int n = ioctl(s, 0x40086b01, &c); if (n == 0) _exit(3);
    while (alarms < 2) ; _exit(4);
  }
  wait(&st); printf("%d ", WEXITSTATUS(st)); fflush(stdout);
  int s = open("/dev/card/checkpoint", O_RDWR), f = open("/tmp/image", O_RDONLY);
  struct restore r = {f, {0, 1, 2}}; waitpid(ioctl(s, 0x40106b02, &r), &st, 0); printf("%d\n", WEXITSTATUS(st)); return 0;
}"#;
    check(
        kind,
        source,
        &["-static"],
        "beat 2000\nleft 100 0\ntimer 77 1 0\nbad -1 -1\npaused -1 1\n3 4\n",
        ExitStatus::Exited(0),
    );
}

/// What a program of the host's needs to be loaded: its interpreter and libraries (ldd(1)).
fn libraries(program: &Path) -> Vec<PathBuf> {
    let list = Command::new("ldd").arg(program).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let paths = list.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).collect()
}

fn dynamic(kind: Kind) {
    let source = r#"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
static __thread int mine = 5; static long sum; static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static void *work(void *a) {
  char *p = malloc(200000); memset(p, 1, 200000); mine += p[199999];
  pthread_mutex_lock(&m); sum += mine; pthread_mutex_unlock(&m); free(p); return 0;
}
int main(int c, char **v) {
  pthread_t t[4]; for (int i = 0; i < 4; i++) pthread_create(t + i, 0, work, 0);
  for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
  void *lib = dlopen("libm.so.6", RTLD_NOW); if (!lib) { puts(dlerror()); return 1; }
  double (*cosine)(double) = dlsym(lib, "cos"); volatile double zero = 0;
  printf("%s %d %ld %g %d\n", v[1], mine, sum, cosine(zero), dlopen("libnone.so", RTLD_NOW) == 0);
  struct timespec a, b; clock_gettime(CLOCK_MONOTONIC, &a); clock_gettime(CLOCK_MONOTONIC, &b);
  long passed = (b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec;
  printf("%d %d %s\n", getauxval(AT_SYSINFO_EHDR) != 0, passed > 0, getenv("GREETING")); return dlclose(lib);
}"#;
    let dir = tempfile::tempdir().unwrap();
    // libm is found by dlopen(3) alone; it is linked to this one only to learn where it is.
    let with_libm = ["-pie", "-fPIE", "-Wl,--no-as-needed", "-lm"];
    let files = libraries(&compile(dir.path(), "other", HELLO, &with_libm));
    for flags in [["-pie", "-fPIE"], ["-no-pie", "-fno-pie"]] {
        let program = compile(dir.path(), "program", source, &flags);
        let ran = run_with(kind, &program, &["one"], &files);
        let expected = "one 5 24 1 1\n1 1 hello\n";
        assert_eq!((&*ran.out, ran.status), (expected, ExitStatus::Exited(0)));
    }
}

fn dynamic_cpp(kind: Kind) {
    let source = r#"
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
struct Late { ~Late() { std::cout << "late\n"; } } late;
int main() {
  std::vector<std::string> words; std::thread t([&] { for (int i = 0; i < 3; i++) words.push_back(std::to_string(i)); });
  t.join(); for (auto &word : words) std::cout << word << ' ';
  try { words.at(7); } catch (const std::out_of_range &) { std::cout << "caught\n"; }
}"#;
    let dir = tempfile::tempdir().unwrap();
    // gcc(1) knows the language by the name; beside it is a C file with nothing in it.
    let file = dir.path().join("source.cc");
    std::fs::write(&file, source).unwrap();
    let flags = [file.to_str().unwrap(), "-lstdc++"];
    let program = compile(dir.path(), "program", "", &flags);
    let ran = run_with(kind, &program, &[], &libraries(&program));
    assert_eq!(
        (&*ran.out, ran.status),
        ("0 1 2 caught\nlate\n", ExitStatus::Exited(0))
    );
}

/// Programs of the host's, as they are.
fn programs_of_the_host(kind: Kind) {
    let host = |program: &str, args: &[&str]| {
        let program = Path::new(program);
        let mut files = libraries(program);
        files.push(program.to_owned());
        let ran = run_with(kind, program, args, &files);
        assert_eq!(
            ran.status,
            ExitStatus::Exited(0),
            "{program:?}: {}",
            ran.out
        );
        ran.out
    };
    assert_eq!(host("/bin/true", &[]), "");
    let names = host("/bin/ls", &["-la", "/", "/bin"]);
    for name in ["bin", "dev", "lib64", "proc", "program", "tmp"] {
        let listed = names
            .lines()
            .any(|l| l.split_whitespace().last() == Some(name));
        assert!(listed, "{name}: {names}");
    }
    assert_eq!(
        host("/bin/sh", &["-c", "echo $((6 * 7)) $GREETING"]),
        "42 hello\n"
    );
    if Path::new("/bin/busybox").exists() {
        let script = "a=$(echo one two | /bin/busybox tr a-z A-Z); \
                      for i in 1 2; do echo $i $a; done; echo x > /tmp/f && /bin/busybox wc -c < /tmp/f";
        let ran = host("/bin/busybox", &["sh", "-c", script]);
        assert_eq!(ran, "1 ONE TWO\n2 ONE TWO\n2\n");
    }
}

/// Calls every system call with nonsense, but for those that would end or stop the caller and
/// futex(2), whose unknown operations are ENOSYS.
const EVERY_CALL: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    static const int not[] = {15, 34, 57, 58, 60, 202, 231};
    for (long n = 0; n < 470; n++) {
        int skip = 0;
        for (unsigned i = 0; i < sizeof not / sizeof *not; i++)
            skip |= n == not[i];
        errno = 0;
        if (!skip && syscall(n, -1L, -1L, -1L, -1L, -1L, -1L) == -1 && errno == ENOSYS)
            printf("%ld ", n);
    }
}
"#;

fn table_of_system_calls(kind: Kind) {
    use snaprig_card_kernel::syscalls::{self, Support};
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "every", EVERY_CALL, &["-static"]);
    let ran = run(kind, &program, &[]);
    assert_eq!(ran.status, ExitStatus::Exited(0));
    let numbers = ran.out.split_whitespace();
    let numbers: Vec<u64> = numbers.map(|number| number.parse().unwrap()).collect();
    let absent =
        |number: &u64| syscalls::find(*number).is_none_or(|call| call.support == Support::Absent);
    assert_eq!(numbers, (0..470).filter(absent).collect::<Vec<_>>());
}

on_both! { hello_static hello_static_pie memory threads processes signals divide_by_zero rust_std
capture_and_restore interrupted_write captured_write captured_files captured_objects interrupted_capture
refused_capture high_base dynamic dynamic_cpp programs_of_the_host files wait_masks
interrupted_sleep timers table_of_system_calls restartable_sequences }
