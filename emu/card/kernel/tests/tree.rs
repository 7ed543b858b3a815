//! Trees of processes are captured, and restored on new cards of either platform: whatever passed
//! between the processes goes on where it stopped.

mod images;

use std::sync::{Arc, Mutex};

use snaprig_card_image::chain;
use snaprig_card_kernel::ExitStatus;
use snaprig_card_platform::testing::BOTH;

use images::{Images, compile, run, run_on};

/// What each program has in front of its `work`, which captures itself with `capture`. A program with
/// an argument starts that; without, it restores /dev/image. Both wait for it.
const FRAME: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
struct capture { int fd; unsigned flags; }; struct restore { int fd, stdio[3]; };
static void say(const char *what, long value) {
  char line[99]; int n = sprintf(line, "%s %ld\n", what, value); write(1, line, n);
}
#define HOLD 4
static int release(void) { return ioctl(open("/dev/card/checkpoint", O_RDWR), 0x6b04, 0); }
/* 0 in the process that goes on, 1 in the restored one. */
static int capture_to(const char *path, unsigned flags) {
  struct capture to = {open(path, O_WRONLY), flags};
  int restored = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40086b01, &to);
  if (restored < 0) { say("capture", -errno); _exit(9); }
  close(to.fd); return restored;
}
#define capture() do { if (!capture_to("/dev/image", 0)) { kill(0, SIGKILL); } } while (0)
static void work(void);
int main(int c, char **v) {
  int status, pid;
  if (c > 1) {
    if ((pid = fork()) == 0) { setpgid(0, 0); work(); _exit(0); }
  } else {
    struct restore from = {open("/dev/image", O_RDONLY), {0, 1, 2}};
    pid = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40106b02, &from);
    if (pid < 0) { say("restore", -errno); return 9; }
  }
  if (waitpid(pid, &status, 0) != pid) return 10;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}
"#;

/// The program is killed when it has captured itself, and ends well, having said this, wherever it is
/// restored.
fn survives(work: &str, expected: &str) {
    let kinds = BOTH;
    let dir = tempfile::tempdir().unwrap();
    let source = format!("{FRAME}{work}");
    let program = compile(dir.path(), &source, &["-pthread"]);
    for from in kinds {
        let images = Images::default();
        let (status, said) = run(from, &program, &["first".into()], &images);
        let killed = 100 + libc::SIGKILL;
        assert_eq!((status, &*said), (ExitStatus::Exited(killed), ""));
        for to in kinds {
            let (status, said) = run(to, &program, &[], &images);
            let ended = (ExitStatus::Exited(0), expected);
            assert_eq!((status, &*said), ended, "from {from} to {to}");
        }
    }
}

/// A child in a pipe's read, a grandchild that computes, an ended child that nobody has waited for,
/// groups and sessions, and a pipe with something in it.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn children_and_pipes() {
    survives(
        r#"
static void work(void) {
  int to[2], from[2], ready[2], full[2]; pipe(to); pipe(from); pipe(ready); pipe(full);
  write(full[1], "still here", 10);
  volatile long *spins = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t worker = fork();
  if (worker == 0) {
    close(to[1]); pid_t spinner = fork();
    if (spinner == 0) { setsid(); double x = 1; for (;;) { x = x * 1.0000001; ++*spins; } }
    write(ready[1], "r", 1);
    char b[16]; long n, sum = 0;
    while ((n = read(to[0], b, sizeof b)) > 0) for (int i = 0; i < n; i++) sum += b[i];
    int ok = getsid(spinner) == spinner && getpgid(spinner) == spinner && getpgid(0) == getppid();
    int status; kill(spinner, SIGTERM); ok &= waitpid(spinner, &status, 0) == spinner && WTERMSIG(status) == SIGTERM;
    write(from[1], &sum, sizeof sum); _exit(ok ? 7 : 8);
  }
  pid_t zombie = fork(); if (zombie == 0) _exit(42);
  siginfo_t info; waitid(P_PID, zombie, &info, WEXITED | WNOWAIT);
  char b[16] = {0}; read(ready[0], b, 1);
  while (*spins < 1000) sched_yield();
  capture();
  long before = *spins, sum; while (*spins == before) sched_yield();
  write(to[1], "\1\2\3", 3); close(to[1]); close(to[0]); read(from[0], &sum, sizeof sum); say("sum", sum);
  memset(b, 0, sizeof b); read(full[0], b, 15); say(b, strlen(b));
  int status; say("zombie", waitpid(zombie, &status, 0) == zombie); say("code", WEXITSTATUS(status));
  say("worker", waitpid(worker, &status, 0) == worker); say("code", WEXITSTATUS(status));
  say("none", waitpid(-1, &status, 0) == -1 && errno == ECHILD);
}"#,
        "sum 6\nstill here 10\nzombie 1\ncode 42\nworker 1\ncode 7\nnone 1\n",
    );
}

/// Sockets between processes: bytes and messages in them, descriptors on their way, one that listens
/// with a client that waits to be accepted, one that is half closed; and one whose peer is not captured.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn sockets() {
    survives(
        r#"
static void send_fd(int to, int fd) {
  char b = 'f', c[CMSG_SPACE(4)] = {0}; struct iovec v = {&b, 1};
  struct msghdr m = {0, 0, &v, 1, c, sizeof c}; struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  h->cmsg_level = SOL_SOCKET; h->cmsg_type = SCM_RIGHTS; h->cmsg_len = CMSG_LEN(4); *(int *)CMSG_DATA(h) = fd;
  sendmsg(to, &m, 0);
}
static int receive_fd(int from) {
  char b, c[CMSG_SPACE(4)] = {0}; struct iovec v = {&b, 1};
  struct msghdr m = {0, 0, &v, 1, c, sizeof c}; recvmsg(from, &m, 0); return *(int *)CMSG_DATA(CMSG_FIRSTHDR(&m));
}
static void work(void) {
  int s[2], q[2], half[2], p[2]; char b[32];
  socketpair(AF_UNIX, SOCK_STREAM, 0, s); socketpair(AF_UNIX, SOCK_SEQPACKET, 0, q); socketpair(AF_UNIX, SOCK_STREAM, 0, half);
  pid_t echo = fork();
  if (echo == 0) {
    close(s[0]); long n; while ((n = read(s[1], b, sizeof b)) > 0) write(s[1], b, n);
    _exit(3);
  }
  close(s[1]);
  write(s[0], "ab", 2); read(s[0], b, 2);
  write(q[0], "one", 3); write(q[0], "three", 5);
  pipe(p); write(p[1], "through", 7); send_fd(q[0], p[0]); close(p[0]);
  write(half[0], "last", 4); shutdown(half[0], SHUT_WR);
  struct sockaddr_un name = {AF_UNIX, "/tmp/listens"}; int l = socket(AF_UNIX, SOCK_STREAM, 0), c = socket(AF_UNIX, SOCK_STREAM, 0);
  bind(l, (void *)&name, sizeof name); listen(l, 3); connect(c, (void *)&name, sizeof name); write(c, "hello", 5);
  struct sockaddr_un hidden = {AF_UNIX, "\0hidden"}; int a = socket(AF_UNIX, SOCK_STREAM, 0); bind(a, (void *)&hidden, 9); listen(a, 1);
  struct timeval t = {0, 200000}; setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  capture();
  int status; write(s[0], "echo", 4); memset(b, 0, 32); read(s[0], b, 4); say(b, 4);
  shutdown(s[0], SHUT_WR); say("end", read(s[0], b, 4)); say("echo", waitpid(echo, &status, 0) == echo && WEXITSTATUS(status) == 3);
  say("message", read(q[1], b, 32)); say("message", read(q[1], b, 32)); int got = receive_fd(q[1]);
  memset(b, 0, 32); read(got, b, 31); say(b, 1);
  memset(b, 0, 32); say("half", read(half[1], b, 31)); say("end", read(half[1], b, 31)); say("back", write(half[1], "x", 1)); say("back", read(half[0], b, 1));
  int conn = accept(l, 0, 0); memset(b, 0, 32); read(conn, b, 31); say(b, 1); write(conn, "you", 3); say("client", read(c, b, 31));
  int again = socket(AF_UNIX, SOCK_STREAM, 0); say("named", connect(again, (void *)&name, sizeof name));
  int other = socket(AF_UNIX, SOCK_STREAM, 0); say("hidden", connect(other, (void *)&hidden, 9));
  say("timeout", read(c, b, 1) < 0 && errno == EAGAIN);
}"#,
        "echo 4\nend 0\necho 1\nmessage 3\nmessage 5\nthrough 1\nhalf 4\nend 0\nback 1\nback 1\n\
         hello 1\nclient 3\nnamed 0\nhidden 0\ntimeout 1\n",
    );
}

/// Datagrams with whom they are from and descriptors, by address and between two; ports of both
/// families; names that are kept; options; and credentials of who has written, or connected.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn datagrams_and_credentials() {
    survives(
        r#"
#define SET(fd, level, option, value) do { int v = value; setsockopt(fd, level, option, &v, sizeof v); } while (0)
static int get(int fd, int level, int option) { int v = -1; socklen_t n = sizeof v; getsockopt(fd, level, option, &v, &n); return v; }
static char control[256]; static struct msghdr m; static struct iovec v;
static int receive(int fd, char *to) {
  v = (struct iovec){to, 32}; m = (struct msghdr){0, 0, &v, 1, control, sizeof control}; return recvmsg(fd, &m, MSG_DONTWAIT);
}
static void *part(int type) {
  for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) if (h->cmsg_type == type) return CMSG_DATA(h);
  return 0;
}
static int pid_of(void) { struct ucred *of = part(2); return of ? of->pid : -1; }
static void work(void) {
  char b[33] = {0}, c[CMSG_SPACE(4)] = {0}; int d[2], s[2], p[2], me = getpid(), status; pid_t child;
  socketpair(AF_UNIX, SOCK_DGRAM, 0, d); socketpair(AF_UNIX, SOCK_STREAM, 0, s);
  SET(s[0], SOL_SOCKET, SO_PASSCRED, 1); SET(d[0], SOL_SOCKET, SO_PASSCRED, 1);
  write(s[1], "mine", 4); write(d[1], "mine too", 8);
  if ((child = fork()) == 0) { write(s[1], "its", 3); write(d[1], "its too", 7); _exit(0); }
  waitpid(child, &status, 0);
  pipe(p); write(p[1], "through", 7);
  struct iovec one = {"f", 1}; struct msghdr with = {0, 0, &one, 1, c, sizeof c}; struct cmsghdr *h = CMSG_FIRSTHDR(&with);
  h->cmsg_level = SOL_SOCKET; h->cmsg_type = SCM_RIGHTS; h->cmsg_len = CMSG_LEN(4); *(int *)CMSG_DATA(h) = p[0];
  sendmsg(d[1], &with, 0); close(p[0]);
  /* By name. */
  struct sockaddr_un path = {AF_UNIX, "/tmp/letters"}, own; socklen_t own_len = sizeof own, len;
  int box = socket(AF_UNIX, SOCK_DGRAM, 0), sender = socket(AF_UNIX, SOCK_DGRAM, 0), gone[2];
  bind(box, (void *)&path, sizeof path); bind(sender, (void *)&path, sizeof(sa_family_t));
  getsockname(sender, (void *)&own, &own_len); connect(sender, (void *)&path, sizeof path); write(sender, "named", 5);
  socketpair(AF_UNIX, SOCK_DGRAM, 0, gone); close(gone[1]);
  /* Ports. */
  struct sockaddr_in in = {AF_INET, htons(4000), {htonl(INADDR_LOOPBACK)}}, from; struct sockaddr_in6 in6 = {AF_INET6, htons(4000)}, from6;
  int udp = socket(AF_INET, SOCK_DGRAM, 0), to_udp = socket(AF_INET, SOCK_DGRAM, 0), lost = socket(AF_INET, SOCK_DGRAM, 0);
  bind(udp, (void *)&in, sizeof in); in.sin_port = htons(4001); bind(to_udp, (void *)&in, sizeof in);
  in.sin_port = htons(4000); connect(to_udp, (void *)&in, sizeof in); write(to_udp, "port", 4);
  in.sin_port = htons(4002); connect(lost, (void *)&in, sizeof in); write(lost, "x", 1);
  int l = socket(AF_INET6, SOCK_STREAM, 0), tcp = socket(AF_INET, SOCK_STREAM, 0); SET(tcp, IPPROTO_TCP, 4, 77);
  bind(l, (void *)&in6, sizeof in6); listen(l, 2); in.sin_port = htons(4000); connect(tcp, (void *)&in, sizeof in); write(tcp, "tcp", 3);
  struct linger linger = {1, 9}; setsockopt(l, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
  /* A peer that has a name later, and one that has gone with something unread. */
  int a[2], r[2]; socketpair(AF_UNIX, SOCK_STREAM, 0, a); socketpair(AF_UNIX, SOCK_STREAM, 0, r); write(r[0], "x", 1); close(r[1]);
  int ul = socket(AF_UNIX, SOCK_STREAM, 0), uc = socket(AF_UNIX, SOCK_STREAM, 0); struct sockaddr_un listens = {AF_UNIX, "/tmp/ul"};
  bind(ul, (void *)&listens, sizeof listens); listen(ul, 1); connect(uc, (void *)&listens, sizeof listens); int ua = accept(ul, 0, 0);
  capture();
  say("stream", receive(s[0], b)); say("mine", pid_of() == me); say("stream", receive(s[0], b)); say("its", pid_of() == child);
  say("letter", receive(d[0], b)); say("mine", pid_of() == me); say("letter", receive(d[0], b)); say("its", pid_of() == child);
  receive(d[0], b); int *passed = part(SCM_RIGHTS); memset(b, 0, 33); say("passed", read(*passed, b, 32)); say(b, 1);
  len = sizeof path; memset(&path, 0, sizeof path); memset(b, 0, 33); say("named", recvfrom(box, b, 32, 0, (void *)&path, &len));
  say(b, len == own_len && !memcmp(&path, &own, len)); say("again", write(sender, "more", 4)); say("again", read(box, b, 32));
  struct sockaddr_un there = {AF_UNIX, "/tmp/letters"}; int late = socket(AF_UNIX, SOCK_DGRAM, 0);
  say("late", sendto(late, "late", 4, 0, (void *)&there, sizeof there)); say("back", sendto(late, "b", 1, 0, (void *)&own, own_len));
  say("not its peer", errno == EPERM); say("gone", write(gone[0], "x", 1) < 0 && errno == ECONNREFUSED);
  len = sizeof from; say("port", recvfrom(udp, b, 32, 0, (void *)&from, &len)); say("from", ntohs(from.sin_port));
  say("port", write(to_udp, "port", 4)); int other = socket(AF_INET, SOCK_DGRAM, 0);
  in.sin_port = htons(4000); say("used", bind(other, (void *)&in, sizeof in) < 0 && errno == EADDRINUSE);
  say("lost", get(lost, SOL_SOCKET, SO_ERROR) == ECONNREFUSED);
  len = sizeof from6; int conn = accept(l, (void *)&from6, &len); say("v6", from6.sin6_family == AF_INET6 && len == sizeof from6);
  say("tcp", read(conn, b, 32)); say("idle", get(tcp, IPPROTO_TCP, 4)); len = sizeof linger; linger.l_linger = 0;
  getsockopt(l, SOL_SOCKET, SO_LINGER, &linger, &len); say("linger", linger.l_linger); say("passes", get(s[0], SOL_SOCKET, SO_PASSCRED));
  int v4 = socket(AF_INET, SOCK_STREAM, 0); say("both", connect(v4, (void *)&in, sizeof in));
  struct ucred peer; len = sizeof peer; getsockopt(a[0], SOL_SOCKET, SO_PEERCRED, &peer, &len); say("peer", peer.pid == me);
  getsockopt(uc, SOL_SOCKET, SO_PEERCRED, &peer, &len); say("peer", peer.pid == me);
  struct sockaddr_un mine = {AF_UNIX, "/tmp/late"}; say("named", bind(uc, (void *)&mine, sizeof mine)); len = sizeof path;
  getpeername(ua, (void *)&path, &len); say(path.sun_path, 1); say("reset", read(r[0], b, 1) < 0 && errno == ECONNRESET);
}"#,
        "stream 4\nmine 1\nstream 3\nits 1\nletter 8\nmine 1\nletter 7\nits 1\npassed 7\nthrough 1\n\
         named 5\nnamed 1\nagain 4\nagain 4\nlate 4\nback -1\nnot its peer 1\ngone 1\nport 4\nfrom 4001\n\
         port 4\nused 1\nlost 1\nv6 1\ntcp 3\nidle 77\nlinger 9\npasses 1\nboth 0\npeer 1\npeer 1\nnamed 0\n\
         /tmp/late 1\nreset 1\n",
    );
}

/// A lock and a condition in shared memory with a waiter in each process, a memfd that both have
/// mapped, a shared offset, and descriptions that are one in both: eventfd, epoll, a process's.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn shared_objects() {
    survives(
        r#"
struct shared { pthread_mutex_t m; pthread_cond_t c; int go, waits, done; };
static void work(void) {
  struct shared *s = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_mutexattr_t ma; pthread_mutexattr_init(&ma); pthread_mutexattr_setpshared(&ma, 1); pthread_mutex_init(&s->m, &ma);
  pthread_condattr_t ca; pthread_condattr_init(&ca); pthread_condattr_setpshared(&ca, 1); pthread_cond_init(&s->c, &ca);
  int m = memfd_create("m", 0); ftruncate(m, 3 << 20);
  char *mine = mmap(0, 3 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, m, 0); strcpy(mine + (2 << 20), "before");
  int e = eventfd(0, 0), ep = epoll_create1(0); struct epoll_event event = {EPOLLIN, {.u64 = 77}}; epoll_ctl(ep, EPOLL_CTL_ADD, e, &event);
  int f = open("/tmp/log", O_CREAT | O_RDWR | O_APPEND, 0600); write(f, "one ", 4);
  pid_t children[2];
  for (int i = 0; i < 2; i++) if ((children[i] = fork()) == 0) {
    char *theirs = mmap(0, 3 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, m, 0);
    pthread_mutex_lock(&s->m); s->waits++; while (!s->go) pthread_cond_wait(&s->c, &s->m); s->done++; pthread_mutex_unlock(&s->m);
    if (i == 0) { strcpy(theirs + (2 << 20), "after"); write(f, "two ", 4); lseek(f, 2, SEEK_SET); }
    uint64_t n = 5; if (i == 1) write(e, &n, 8);
    _exit(20 + i);
  }
  int pidfd = syscall(SYS_pidfd_open, children[0], 0);
  for (;;) { pthread_mutex_lock(&s->m); int n = s->waits; pthread_mutex_unlock(&s->m); if (n == 2) break; sched_yield(); }
  capture();
  struct pollfd p = {pidfd, POLLIN}; say("alive", poll(&p, 1, 0));
  pthread_mutex_lock(&s->m); s->go = 1; pthread_cond_broadcast(&s->c); pthread_mutex_unlock(&s->m);
  say("event", epoll_wait(ep, &event, 1, 20000)); uint64_t n; read(e, &n, 8); say("count", n); say("data", event.data.u64);
  say("dead", poll(&p, 1, 20000)); int status; siginfo_t info; waitid(P_PIDFD, pidfd, &info, WEXITED); say("first", info.si_status);
  waitpid(children[1], &status, 0); say("second", WEXITSTATUS(status)); say("done", s->done); say(mine + (2 << 20), 0);
  char b[32] = {0}; say("offset", lseek(f, 0, SEEK_CUR)); pread(f, b, 31, 0); say(b, 0);
  struct stat st; say("named", stat("/tmp/log", &st) == 0 && st.st_size == 8);
}"#,
        "alive 0\nevent 1\ncount 5\ndata 77\ndead 1\nfirst 20\nsecond 21\ndone 2\nafter 0\noffset 2\none two  0\nnamed 1\n",
    );
}

/// Processes that share more than is usual: a parent that waits in vfork(2), and a child of clone(2) with
/// the same memory, descriptors and working directory. The captured process's first thread has ended.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn clones() {
    survives(
        r#"
static volatile int hits, waits; static int p[2], v[2]; static char stack[65536];
static int shares(void *unused) { char b; read(p[0], &b, 1); hits += b; chdir("/tmp"); close(p[0]); return 5; }
static void *goes_on(void *main_thread) {
  pthread_join(*(pthread_t *)main_thread, 0);
  capture();
  int status; char b, at[99] = {0};
  write(p[1], "\11", 1); waitpid(-1, &status, __WCLONE); say("clone", WEXITSTATUS(status));
  getcwd(at, 99); say(at, hits); say("closed", read(p[0], &b, 1) < 0 && errno == EBADF);
  write(v[1], "v", 1); wait(&status); say("vfork", WEXITSTATUS(status)); _exit(0);
}
static void work(void) {
  static pthread_t me; pthread_t t; me = pthread_self(); pipe(p); pipe(v);
  volatile int *vforked = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (fork() == 0) {
    int status = 0, child = vfork();
    if (child == 0) { char b; *vforked = 1; read(v[0], &b, 1); hits = 30; _exit(4); }
    waitpid(child, &status, 0); _exit(hits + WEXITSTATUS(status));
  }
  while (!*vforked) sched_yield();
  clone(shares, stack + sizeof stack, CLONE_VM | CLONE_FILES | CLONE_FS, 0);
  pthread_create(&t, 0, goes_on, &me); pthread_exit(0);
}"#,
        "clone 5\n/tmp 9\nclosed 1\nvfork 34\n",
    );
}

/// Pages that a child has had from its parent, some of them changed in one of the two.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn shared_pages() {
    survives(
        r#"
enum { PAGES = 33 << 8 };
static long *all; static int go[2];
static int is_as(int by, long value) {
  int bad = 0;
  for (long i = 0; i < PAGES; i++) bad += all[i * 512] != (i % 100 == by ? value : i);
  return bad;
}
static void work(void) {
  int ready[2], status; char byte; pipe(go); pipe(ready);
  all = mmap(0, PAGES << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (long i = 0; i < PAGES; i++) all[i * 512] = i;
  if (fork() == 0) {
    for (long i = 0; i < PAGES; i++) if (i % 100 == 7) all[i * 512] = -7;
    write(ready[1], "r", 1); read(go[0], &byte, 1); _exit(is_as(7, -7) != 0);
  }
  read(ready[0], &byte, 1);
  for (long i = 0; i < PAGES; i++) if (i % 100 == 8) all[i * 512] = -8;
  capture();
  say("parent", is_as(8, -8)); memset(all, 0, PAGES << 12);
  write(go[1], "g", 1); wait(&status); say("child", WEXITSTATUS(status));
}"#,
        "parent 0\nchild 0\n",
    );
}

/// Captures in a row are a chain of the whole tree: children come and go, and write to what is shared.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
#[cfg_attr(
    not(has_write_tracking),
    ignore = "the host does not track writes (Linux 6.7 can)"
)]
fn chains_of_trees() {
    let kinds = BOTH;
    let dir = tempfile::tempdir().unwrap();
    let work = r#"
static void work(void) {
  int to[2], from[2]; pipe(to); pipe(from); char b[16];
  volatile long *shared = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  long *own = mmap(0, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (long i = 0; i < 1 << 20; i++) own[i] = i;
  for (int round = 0; round < 4; round++) {
    pid_t child = fork();
    if (child == 0) for (;;) {
      read(to[0], b, 1); own[round * 512]++; shared[round * 512] += 10; long sum = 0;
      for (long i = 0; i < 1 << 20; i++) sum += own[i] ^ i;
      write(from[1], &sum, sizeof sum);
    }
    long sum; write(to[1], "x", 1); read(from[0], &sum, sizeof sum);
    int restored = capture_to("/dev/image", round == 0 ? 1 : 2);
    own[round * 512 + 7] = 0; shared[round * 512 + 7]++;
    if (restored) {
      for (int i = 0; i <= round; i++) { write(to[1], "x", 1); read(from[0], &sum, sizeof sum); say("sum", sum != 0); }
      long total = 0; for (int i = 0; i < 4; i++) total += shared[i * 512] / 10; say("total", total);
      kill(0, SIGKILL);
    }
  }
  kill(0, SIGKILL);
}"#;
    let program = compile(dir.path(), &format!("{FRAME}{work}"), &["-pthread"]);
    let killed = ExitStatus::Exited(100 + libc::SIGKILL);
    for from in kinds {
        let images = Images::default();
        let (status, said) = run(from, &program, &["first".into()], &images);
        assert_eq!((status, &*said), (killed, ""));
        let images = images.0.lock().unwrap();
        assert_eq!(images.len(), 4);
        for last in 0..images.len() {
            let chain = images[..=last].iter().map(Vec::as_slice).collect();
            let whole = chain::collapse(chain, Vec::new()).unwrap();
            let whole = Images(Arc::new(Mutex::new(vec![whole])));
            let (status, said) = run(kinds[last % 2], &program, &[], &whole);
            // One child answered in each round so far, and as many after the restore.
            let (sums, total) = ("sum 1\n".repeat(last + 1), 2 * (last + 1));
            assert_eq!((status, said), (killed, format!("{sums}total {total}\n")));
        }
    }
}

/// Cards of other sizes: a larger one, a smaller one with room, and one without, where a restore says
/// so, leaves nothing behind, and other programs run on.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn cards_of_other_sizes() {
    let kinds = BOTH;
    let dir = tempfile::tempdir().unwrap();
    let work = r#"
static void work(void) {
  long bytes = 60 << 20; char *sparse = mmap(0, 1L << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  int m = memfd_create("m", 0); ftruncate(m, 10 << 20);
  char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *q = mmap(0, 10 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, m, 0);
  for (long i = 0; i < bytes; i += 4096) p[i] = i >> 12;
  for (long i = 0; i < 10 << 20; i += 4096) q[i] = 3;
  for (long i = 0; i < 1L << 30; i += 64 << 20) sparse[i] = 5;
  capture();
  long sum = 0; for (long i = 0; i < bytes; i += 4096) sum += p[i] == (char)(i >> 12);
  for (long i = 0; i < 10 << 20; i += 4096) sum += q[i] == 3;
  for (long i = 0; i < 1L << 30; i += 64 << 20) sum += sparse[i] == 5;
  say("pages", sum);
}"#;
    let source = format!("{FRAME}{work}");
    let program = compile(dir.path(), &source, &["-pthread"]);
    // Tries in vain, then shows that the card has what it had before.
    let again = r#"
int main() {
  struct restore from = {open("/dev/image", O_RDONLY), {0, 1, 2}};
  long bytes = 20 << 20; char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  int n = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40106b02, &from); say("restore", n < 0 ? -errno : n);
  for (long i = 0; i < bytes; i += 4096) p[i] = 1;
  struct stat st; say("named", stat("/tmp/log", &st)); say("children", waitpid(-1, 0, 0) < 0 && errno == ECHILD); return 0;
}"#;
    let head = FRAME.split("static void work").next().unwrap();
    let other = tempfile::tempdir().unwrap();
    let refused = compile(other.path(), &format!("{head}{again}"), &["-pthread"]);
    for from in kinds {
        let images = Images::default();
        run(from, &program, &["first".into()], &images);
        for to in kinds {
            for (mib, fits) in [(512, true), (96, true), (48, false)] {
                let (program, expected) = match fits {
                    true => (&program, "pages 17936\n".to_owned()),
                    false => (
                        &refused,
                        format!("restore -{}\nnamed -1\nchildren 1\n", libc::ENOMEM),
                    ),
                };
                let ran = run_on(to, mib << 20, program, &[], &images);
                let ended = (ExitStatus::Exited(0), expected);
                assert_eq!(ran, ended, "{mib} MiB, from {from} to {to}");
            }
        }
    }
}

/// After a capture that holds, nobody but who captured runs on, until it releases them, or ends: then
/// nothing of the tree is left, and it can come back at once, under its ids.
#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn who_is_held_runs_on_elsewhere_alone() {
    let kinds = BOTH;
    let work = r#"
static volatile long *spins;
static void *spin(void *x) { for (;;) { ++spins[0]; write(-1, x, 0); } }
static void *blocked(void *pipe) { char byte; read(*(int *)pipe, &byte, 1); return 0; }
static void await_all(void) { long b0 = spins[0], b1 = spins[1]; while (spins[0] == b0 || spins[1] == b1) sched_yield(); }
static int is_still(void) {
  long b0 = spins[0], b1 = spins[1];
  for (int n = 0; n < 500; n++) sched_yield();
  return spins[0] == b0 && spins[1] == b1;
}
static void tree(void) {
  pthread_t spinner, reader; int p[2]; pipe(p);
  pid_t child = fork();
  if (child == 0) { if (fork() == 0) pause(); for (;;) ++spins[1]; }
  pid_t zombie = fork(); if (zombie == 0) _exit(42);
  siginfo_t info; waitid(P_PID, zombie, &info, WEXITED | WNOWAIT);
  pthread_create(&spinner, 0, spin, 0); pthread_create(&reader, 0, blocked, p);
  await_all();
  if (capture_to("/dev/image", HOLD)) { say("a restored one", 1); _exit(1); }
  say("still", is_still());
  signal(SIGALRM, SIG_IGN); kill(getpid(), SIGALRM); struct pollfd none = {p[0], POLLIN}; poll(&none, 1, 10);
  say("still", is_still());
  if (release()) _exit(2);
  await_all(); say("released", 1);
  if (capture_to("/dev/image", HOLD) == 0) _exit(33);
  await_all(); say("restored", 1);
  int status; say("zombie", waitpid(zombie, &status, 0) == zombie);
  write(p[1], "b", 1); pthread_join(reader, 0); _exit(34);
}
static void work(void) {
  int status; spins = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (fork() == 0) tree();
  wait(&status); say("ended", WEXITSTATUS(status)); say("still", is_still());
  struct restore from = {open("/dev/image", O_RDONLY), {0, 1, 2}};
  pid_t pid = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40106b02, &from);
  if (pid < 0) say("restore", -errno);
  waitpid(pid, &status, 0); say("ended", WEXITSTATUS(status));
}"#;
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), &format!("{FRAME}{work}"), &["-pthread"]);
    let expected =
        "still 1\nstill 1\nreleased 1\nended 33\nstill 1\nrestored 1\nzombie 1\nended 34\n";
    for kind in kinds {
        let ended = run(kind, &program, &["first".into()], &Images::default());
        assert_eq!(ended, (ExitStatus::Exited(0), expected.into()), "on {kind}");
    }
}
