//! A program with 8 OpenMP threads is captured again and again at moments that nobody chose, each
//! time killed and restored on a new card of the other platform, and ends with the right answer.
//!
//! SNAPRIG_CAPTURES says how often (10).

mod images;

use snaprig_card_kernel::ExitStatus;
use snaprig_card_platform::testing::BOTH;

use images::{Images, compile, run};

/// `program CAPTURES SEED` works until it has been captured so often; each capture ends it. Without
/// arguments it restores /dev/image and waits for what comes of it.
const PROGRAM: &str = r#"
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#define N 4096
struct capture { int fd; unsigned flags; }; struct restore { int fd, stdio[3]; };
static volatile int captures; static unsigned seed; static double chaos[N], golden[N];
static long cells[N];
static double logistic(int i) {
  double x = 0.1 + 0.8 * i / N; for (int k = 0; k < 40 + i % 64; k++) x = 3.9 * x * (1 - x); return x;
}
static void *capturer(void *left) {
  for (int n = *(int *)left; n > 0; n--) {
    usleep(rand_r(&seed) % 8000);
    struct capture to = {open("/dev/image", O_WRONLY), 0};
    int restored = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40086b01, &to);
    if (restored < 0) { perror("capture"); _exit(8); }
    if (restored == 0) _exit(5);
    captures++;
  }
  return 0;
}
static int work(int wanted) {
  pthread_t thread; long rounds = 0;
  for (int i = 0; i < N; i++) golden[i] = logistic(i);
  pthread_create(&thread, 0, capturer, &wanted);
  do {
    long sum = 0, crossed = 0; int threads = 0;
    #pragma omp parallel num_threads(8) reduction(+ : sum)
    {
      #pragma omp atomic
      threads++;
      #pragma omp for schedule(dynamic, 16)
      for (int i = 0; i < N; i++) { chaos[i] = logistic(i); cells[i] = (long)i * i; }
      #pragma omp for schedule(static)
      for (int i = 0; i < N; i++) sum += cells[N - 1 - i];
      #pragma omp critical
      crossed += omp_get_thread_num();
      #pragma omp barrier
    }
    if (threads != 8 || crossed != 28 || sum != (long)(N - 1) * N * (2 * N - 1) / 6) {
      printf("round %ld: %d threads, %ld, %ld\n", rounds, threads, crossed, sum); return 6;
    }
    for (int i = 0; i < N; i++)
      if (chaos[i] != golden[i]) { printf("round %ld: cell %d\n", rounds, i); return 7; }
    rounds++;
  } while (captures < wanted);
  pthread_join(thread, 0); printf("right\n"); return 0;
}
int main(int c, char **v) {
  int status, pid; setvbuf(stdout, 0, _IOLBF, 0);
  if (c == 3) {
    seed = atoi(v[2]);
    if ((pid = fork()) == 0) exit(work(atoi(v[1])));
  } else {
    struct restore from = {open("/dev/image", O_RDONLY), {0, 1, 2}};
    pid = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40106b02, &from);
    if (pid < 0) { perror("restore"); return 9; }
  }
  if (waitpid(pid, &status, 0) != pid) return 10;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}"#;

#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn openmp_survives_captures_at_any_moment() {
    let kinds = BOTH;
    let captures: usize = std::env::var("SNAPRIG_CAPTURES").map_or(10, |count| {
        count.parse().expect("SNAPRIG_CAPTURES is a number")
    });
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), PROGRAM, &["-fopenmp", "-pthread"]);
    let images = Images::default();
    let first = [captures.to_string(), "7".into()];
    for capture in 0..=captures {
        let args = if capture == 0 { &first[..] } else { &[] };
        let (status, out) = run(kinds[capture % 2], &program, args, &images);
        let expected = match capture == captures {
            true => (ExitStatus::Exited(0), "right\n"),
            false => (ExitStatus::Exited(5), ""),
        };
        assert_eq!((status, out.as_str()), expected, "after {capture} captures");
        // Only the last is restored.
        let mut images = images.0.lock().unwrap();
        let last = images.len() - 1;
        images.drain(..last);
    }
}
