//! Clocks that programs read by themselves (vdso(7)): they agree with the system calls, and never go
//! back, not even on another card.

mod images;

use snaprig_card_kernel::ExitStatus;
use snaprig_card_platform::testing::BOTH;

use images::{Images, compile, run};

/// `program` reads clocks both ways in two threads, one of which captures the process; `program
/// restore` restores it.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
struct capture { int fd; unsigned flags; }; struct restore { int fd, stdio[3]; };
static volatile int done; static int back, apart;
static int64_t ns(struct timespec t) { return t.tv_sec * 1000000000L + t.tv_nsec; }
static int64_t vdso(int clock) { struct timespec t; clock_gettime(clock, &t); return ns(t); }
static int64_t call(int clock) { struct timespec t; syscall(SYS_clock_gettime, clock, &t); return ns(t); }
static void *watch(void *unused) {
  static const int clocks[] = {CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE};
  for (int64_t last = 0, now; !done; last = now)
    for (int i = 0; i < 1000; i++, last = now) {
      now = i % 100 ? vdso(clocks[i % 2]) : call(clocks[i % 2]);
      if (now < last) { back++; printf("back by %ld ns\n", (long)(last - now)); }
    }
  return 0;
}
static void compare(void) {
  struct timeval v; gettimeofday(&v, 0); int64_t now = v.tv_sec * 1000000L + v.tv_usec;
  int64_t other = call(CLOCK_REALTIME) / 1000; time_t t = time(0), u = syscall(SYS_time, 0);
  if (other < now || other - now > 5000000 || u < t || t > now / 1000000 + 5) apart++;
  unsigned cpu = 9; getcpu(&cpu, 0); if (cpu != 0) apart++;
}
static int work(void) {
  pthread_t thread; pthread_create(&thread, 0, watch, 0);
  usleep(50000); compare();
  int64_t before = vdso(CLOCK_MONOTONIC);
  struct capture to = {open("/dev/image", O_WRONLY), 0};
  int restored = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40086b01, &to);
  if (restored < 0) { perror("capture"); return 8; }
  if (vdso(CLOCK_MONOTONIC) < before) back++;
  usleep(50000); compare(); done = 1; pthread_join(thread, 0);
  printf("%d: %d back, %d apart\n", restored, back, apart); return 0;
}
int main(int c, char **v) {
  int status, pid; setvbuf(stdout, 0, _IOLBF, 0);
  if (c == 1) { if ((pid = fork()) == 0) _exit(work()); }
  else {
    struct restore from = {open("/dev/image", O_RDONLY), {0, 1, 2}};
    pid = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40106b02, &from);
    if (pid < 0) { perror("restore"); return 9; }
  }
  return waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : 10;
}"#;

#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn clocks_never_go_back() {
    let [kvm, ptrace] = BOTH;
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), PROGRAM, &["-pthread"]);
    for (first, second) in [(kvm, ptrace), (ptrace, kvm)] {
        let images = Images::default();
        for (kind, args, captured) in [(first, &[][..], 0), (second, &["restore".into()], 1)] {
            let (status, out) = run(kind, &program, args, &images);
            let expected = format!("{captured}: 0 back, 0 apart\n");
            assert_eq!((status, out), (ExitStatus::Exited(0), expected), "{kind}");
        }
    }
}
