//! Programs that share, race and leave things behind: the card kernel keeps its tables right.

mod programs;

use snaprig_card_kernel::ExitStatus;
use snaprig_card_platform::{Kind, on_both};

use programs::{check, compile, run};

/// Two processes share descriptors and are not waited for: what they had open is closed.
fn shared_descriptors_close_with_their_last_process(kind: Kind) {
    let source = r#"
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static int end(void *unused) { return 0; }
int main() {
  char byte; int p[2]; siginfo_t info; pipe(p);
  pid_t first = fork();
  if (first == 0) {
    clone(end, (char *)malloc(65536) + 65536, CLONE_FILES | CLONE_PARENT | SIGCHLD, 0);
    _exit(0);
  }
  close(p[1]);
  waitid(P_PID, first, &info, WEXITED | WNOWAIT);
  printf("%zd\n", read(p[0], &byte, 1));
  return 0;
}"#;
    check(kind, source, &["-static"], "0\n", ExitStatus::Exited(0));
}

/// A child of vfork(2) is waited for while signals come.
fn signals_do_not_end_a_vfork(kind: Kind) {
    let source = r#"
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static volatile int ticks, shared;
static void tick(int signal) { ticks++; }
int main() {
  struct sigaction action = {.sa_handler = tick};
  sigaction(SIGALRM, &action, 0);
  struct itimerval often = {{0, 2000}, {0, 2000}};
  setitimer(ITIMER_REAL, &often, 0);
  int early = 0;
  for (int i = 0; i < 10; i++) {
    shared = 0;
    pid_t child = vfork();
    if (child == 0) {
      struct timespec time = {0, 10000000};
      nanosleep(&time, 0);
      shared = 1;
      _exit(0);
    }
    if (child < 0 || !shared) early++;
    while (waitpid(child, 0, 0) < 0);
  }
  printf("%d %d\n", early, ticks > 0); return 0;
}"#;
    check(kind, source, &["-static"], "0 1\n", ExitStatus::Exited(0));
}

/// Nowhere to tell an id is no reason to leave half a process behind.
fn ids_that_cannot_be_told(kind: Kind) {
    let source = r#"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
int main() {
  int flags = CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | SIGCHLD;
  long child = syscall(SYS_clone, flags, 0, 8, 8, 0);
  if (child == 0) _exit(3);
  int status; pid_t waited = wait(&status);
  printf("%d %d\n", child == waited, WEXITSTATUS(status));
  waited = wait(&status);
  printf("%d %d\n", waited, errno == ECHILD); return 0;
}"#;
    check(
        kind,
        source,
        &["-static"],
        "1 3\n-1 1\n",
        ExitStatus::Exited(0),
    );
}

/// Arguments and environment are bytes, whatever they spell.
fn arguments_that_are_no_text(kind: Kind) {
    let source = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int c, char **v) {
  char *again[] = {"again", "\xff\x80", 0}, *env[] = {"NAME=\xe7", 0};
  if (c == 3) execve("/proc/self/exe", again, env);
  printf("%hhx %hhx\n", v[1][0], getenv("NAME")[0]); return 0;
}"#;
    check(kind, source, &["-static"], "ff e7\n", ExitStatus::Exited(0));
}

/// A program that unmaps all it has got, its code included, is ended by the next instruction.
fn unmapping_everything(kind: Kind) {
    let source = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main() {
  int status;
  if (fork() == 0) { munmap(0, (1UL << 47) - 4096); _exit(0); }
  wait(&status);
  printf("%d %d\n", WTERMSIG(status), munmap(0, 1UL << 47)); return 0;
}"#;
    check(kind, source, &["-static"], "11 -1\n", ExitStatus::Exited(0));
}

/// As many areas as a process may have: each new one is found room for, and files are as near as ever.
fn many_areas(kind: Kind) {
    let source = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
static double now() { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void reads(int fd) { char byte; for (int i = 0; i < 40; i++) pread(fd, &byte, 1, 0); }
static void maps(int fd) { for (int i = 0; i < 200; i++) mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0); }
// The best of some: what else runs on the host makes the others slower.
static double best(void (*what)(int), int fd) {
  double best = 1e9;
  for (int i = 0; i < 7; i++) {
    double start = now();
    what(fd);
    if (now() - start < best) best = now() - start;
  }
  return best;
}
int main() {
  int fd = open("/tmp/f", O_CREAT | O_RDWR, 0600);
  ftruncate(fd, 4096);
  double few = best(reads, fd), first = best(maps, fd);
  for (int i = 0; i < 100; i++) maps(fd);
  double many = best(reads, fd), last = best(maps, fd);
  if (many > 20 * few) printf("reads: %f, then %f s\n", few, many);
  if (last > 20 * first) printf("maps: %f, then %f s\n", first, last);
  while (mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
  printf("%d\n", errno == ENOMEM); return 0;
}"#;
    check(kind, source, &["-static"], "1\n", ExitStatus::Exited(0));
}

/// Files that fill a card leave enough for a program to run, and to remove them.
fn full_of_files(kind: Kind) {
    let source = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static char bytes[1 << 20];
static int fill(const char *path) {
  int fd = open(path, O_CREAT | O_WRONLY, 0600);
  memset(bytes, 1, sizeof bytes);
  for (size_t size = sizeof bytes; size > 0; size /= 2) while (write(fd, bytes, size) > 0);
  int error = errno;
  close(fd);
  return error;
}
int main(int c, char **v) {
  if (c == 2) return unlink("/tmp/full") ? 9 : 7;
  int status, error = fill("/tmp/full");
  if (fork() == 0) { memset(malloc(100000), 1, 100000); execl("/proc/self/exe", "again", "x", (char *)0); _exit(8); }
  wait(&status);
  printf("%d %d", error == ENOSPC, WEXITSTATUS(status));
  printf(" %zd\n", write(open("/tmp/new", O_CREAT | O_WRONLY, 0600), bytes, sizeof bytes));
  return 0;
}"#;
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "program", source, &["-static"]);
    let ran = run(kind, &program, &["run", "it"]);
    assert_eq!(
        (ran.out.as_str(), ran.status),
        ("1 7 1048576\n", ExitStatus::Exited(0))
    );
}

/// Who is woken from a futex while it is stopped, and has a signal then, has been woken all the same.
fn woken_while_stopped(kind: Kind) {
    let source = r#"
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void handler(int signal) {}
static long futex(int *word, int op, int value, long more, int *other) {
  return syscall(SYS_futex, word, op, value, more, other, 0);
}
int main() {
  int *word = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), status;
  struct sigaction action = {.sa_handler = handler};
  sigaction(SIGUSR1, &action, 0);
  pid_t child = fork();
  if (child == 0) { while (futex(word, FUTEX_WAIT, 0, 0, 0)); _exit(0); }
  while (futex(word, FUTEX_REQUEUE, 0, 1, word + 1) != 1) sched_yield();
  kill(child, SIGSTOP);
  waitpid(child, &status, WUNTRACED);
  long woken = futex(word + 1, FUTEX_WAKE, 1, 0, 0);
  kill(child, SIGUSR1);
  kill(child, SIGCONT);
  // Linux takes those that stop off the queue: it waits again, at the first word.
  while (!woken) woken = futex(word, FUTEX_WAKE, 1, 0, 0);
  alarm(20);
  waitpid(child, &status, 0);
  printf("%x\n", status); return 0;
}"#;
    check(kind, source, &["-static"], "0\n", ExitStatus::Exited(0));
}

on_both! { shared_descriptors_close_with_their_last_process signals_do_not_end_a_vfork
ids_that_cannot_be_told arguments_that_are_no_text unmapping_everything many_areas full_of_files woken_while_stopped }
