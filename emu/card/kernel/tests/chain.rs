//! Chains of images: a program writes at random, captures itself at random, and every capture,
//! collapsed with those before it and restored on either platform, has the memory of its time. And while it writes: the
//! last image of a live chain has the memory of its time, also on a card to which the others were brought before.

mod images;

use std::sync::{Arc, Mutex};

use snaprig_card_image::chain;
use snaprig_card_kernel::ExitStatus;
use snaprig_card_platform::{Kind, testing::BOTH};

use images::{Images, compile, run};

/// `program SEED` captures itself into /dev/image and says what its memory is after each; `program`
/// restores what is there.
const PROGRAM: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define PAGE 4096UL
#define CAPTURES 7
struct capture { int fd; unsigned flags; }; struct restore { int fd, stdio[3]; };
/* The last one is a private mapping of a file, and has what is written to that. */
static uint64_t seed, sizes[3] = {33 << 20, 1 << 20, 1 << 20}; static char *areas[3]; static int file;
static uint64_t draw(uint64_t below) {
  seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed % below;
}
static uint64_t sum(void) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int a = 0; a < 3; a++)
    for (uint64_t i = 0; i < sizes[a] / 8; i++) {
      hash = (hash ^ ((uint64_t *)areas[a])[i]) * 0x100000001b3;
      if (i % 512 == 0 && hash == 1) abort();
    }
  return hash;
}
static void *room(void *at, uint64_t bytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
  return mmap(at, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
}
static void change(void) {
  int a = draw(3); uint64_t pages = sizes[a] / PAGE, page = draw(pages), count = 1 + draw(40);
  if (count > pages - page) count = pages - page;
  char *at = areas[a] + page * PAGE;
  if (a == 2) {
    static char full[PAGE]; memset(full, draw(2), PAGE);
    for (uint64_t i = 0; i < count; i++) {
      if (draw(8) == 0) at[i * PAGE] = draw(256);
      else pwrite(file, full, PAGE, (page + i) * PAGE);
    }
    return;
  }
  switch (draw(9)) {
  case 0: madvise(at, count * PAGE, MADV_DONTNEED); break;
  case 1: munmap(at, count * PAGE); room(at, count * PAGE); break;
  case 2: mprotect(at, count * PAGE, PROT_READ); mprotect(at, count * PAGE, PROT_READ | PROT_WRITE);
          at[draw(count * PAGE)] = draw(256); break;
  case 3: for (uint64_t i = 0; i < count * PAGE; i++) at[i] = draw(256); break;
  case 4: for (uint64_t i = 0; i < count * PAGE; i++) at[i] = 0; break;
  case 5: if (fork() == 0) { at[0]++; _exit(0); }
          at[draw(count * PAGE)] = draw(256); wait(0); break;
  default: for (uint64_t i = 0; i < count; i++) at[draw(count * PAGE)] = draw(256);
  }
}
static int work(void) {
  for (int a = 0; a < 2; a++) areas[a] = room(0, sizes[a]);
  file = open("/tmp/file", O_RDWR | O_CREAT, 0600); unlink("/tmp/file"); ftruncate(file, sizes[2]);
  areas[2] = mmap(0, sizes[2], PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  int device = open("/dev/card/checkpoint", O_RDWR), n;
  struct capture none = {1, 2};
  if (ioctl(device, 0x40086b01, &none) != -1) return 7;
  for (int i = 0; i < CAPTURES; i++) {
    /* What was not there is, once it was summed up: only the last one has nothing new. */
    for (n = i >= CAPTURES - 2 ? 0 : draw(60); n > 0; n--) change();
    struct capture to = {open("/dev/image", O_WRONLY), i == 0 ? 1 : 2};
    n = ioctl(device, 0x40086b01, &to);
    if (n < 0 && errno == EOPNOTSUPP) return 77;
    if (n < 0) { perror("capture"); return 8; }
    printf("%lx\n", sum());
    if (n == 1) return 0;
    close(to.fd);
  }
  return 0;
}
int main(int c, char **v) {
  int status, pid; setvbuf(stdout, 0, _IOLBF, 0);
  if (c == 2) {
    seed = 0x9e3779b97f4a7c15 * (1 + atoi(v[1]));
    if ((pid = fork()) == 0) _exit(work());
  } else {
    struct restore from = {open("/dev/image", O_RDONLY), {0, 1, 2}};
    pid = ioctl(open("/dev/card/checkpoint", O_RDWR), 0x40106b02, &from);
    if (pid < 0) { perror("restore"); return 9; }
  }
  return waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : 10;
}"#;

/// `program SEED live` has a thread that changes memory and a shared file, as the seed says, while another captures a live
/// chain; `program COUNT` preloads so many images and restores the next. Each says what memory is in the end.
const LIVE: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#define PAGE 4096UL
#define ROUNDS 4
#define ENOUGH 3000
struct capture { int fd; unsigned flags; }; struct restore { int fd, stdio[3]; };
static uint64_t seed, bytes = 17 << 20; static char *areas[2]; static volatile int steps, limit = 2500;
static uint64_t draw(uint64_t below) {
  seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed % below;
}
static void change(void) {
  int a = draw(2); uint64_t page = draw(bytes / PAGE - 40), count = 1 + draw(20);
  char *at = areas[a] + page * PAGE;
  switch (draw(8)) {
  case 0: if (a == 0) madvise(at, count * PAGE, MADV_DONTNEED); else memset(at, 0, count * PAGE); break;
  case 1: if (a == 0) { munmap(at, count * PAGE);
            mmap(at, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); } break;
  case 2: mprotect(at, count * PAGE, PROT_READ); mprotect(at, count * PAGE, PROT_READ | PROT_WRITE); break;
  default: for (uint64_t i = 0; i < count; i++) at[draw(count * PAGE)] = draw(256);
  }
}
static void *work(void *none) {
  for (steps = 0; steps < ENOUGH; steps++) {
    while (steps >= limit) sched_yield();
    change();
  }
  return 0;
}
static int run(void) {
  int file = open("/tmp/store/a", O_RDWR | O_CREAT, 0600), device = open("/dev/card/checkpoint", O_RDWR), n, at;
  ftruncate(file, bytes);
  areas[0] = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  areas[1] = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  pthread_t worker; pthread_create(&worker, 0, work, 0);
  for (int i = 0; i < ROUNDS; i++) {
    for (at = steps; steps < at + 100 && steps < limit;) sched_yield();
    unsigned flags = (i == 0 ? 1 : 2) | (i < ROUNDS - 1 ? 8 : 0) | 16;
    struct capture to = {open("/dev/image", O_WRONLY), flags};
    n = ioctl(device, 0x40086b01, &to);
    if (n < 0) { perror("capture"); return 8; }
    if (n == 0) close(to.fd);
  }
  limit = ENOUGH;
  pthread_join(worker, 0);
  uint64_t hash = 0xcbf29ce484222325;
  for (int a = 0; a < 2; a++)
    for (uint64_t i = 0; i < bytes / 8; i++) hash = (hash ^ ((uint64_t *)areas[a])[i]) * 0x100000001b3;
  printf("%lx\n", hash);
  return access("/tmp/store/a", R_OK) ? 6 : 0;
}
int main(int c, char **v) {
  int status, pid, device = open("/dev/card/checkpoint", O_RDWR); setvbuf(stdout, 0, _IOLBF, 0);
  mkdir("/tmp/store", 0700);
  if (c == 3) {
    seed = 0x9e3779b97f4a7c15 * (1 + atoi(v[1]));
    if ((pid = fork()) == 0) _exit(run());
  } else {
    struct restore from = {open("/dev/image", O_RDONLY), {0, 1, 2}};
    for (int i = 0; i < atoi(v[1]); i++)
      if (ioctl(device, 0x40046b05, &from)) { perror("preload"); return 11; }
    pid = ioctl(device, 0x40106b02, &from);
    if (pid < 0) { perror("restore"); return 9; }
  }
  return waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : 10;
}"#;

fn chains(kind: Kind) {
    let [kvm, ptrace] = BOTH;
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), PROGRAM, &[]);
    for seed in 0..4 {
        let images = Images::default();
        let (status, said) = run(kind, &program, &[seed.to_string()], &images);
        assert_eq!(status, ExitStatus::Exited(0), "seed {seed}: {said}");
        let (said, images): (Vec<_>, _) = (said.lines().collect(), images.0.lock().unwrap());
        assert_eq!((said.len(), images.len()), (7, 7));
        // Nothing has changed before the last one: neither the program's text nor what is shared with a file is in it.
        let (whole, last) = (images[0].len(), images[6].len());
        assert!(last < 256 << 10 && last < whole / 8, "{last} of {whole}");
        for last in 0..images.len() {
            let chain = images[..=last].iter().map(Vec::as_slice).collect();
            let whole = chain::collapse(chain, Vec::new()).unwrap();
            let whole = Images(Arc::new(Mutex::new(vec![whole])));
            let (status, restored) = run([kvm, ptrace][last % 2], &program, &[], &whole);
            let expected = (ExitStatus::Exited(0), said[last]);
            assert_eq!((status, restored.trim()), expected, "seed {seed}, {last}");
        }
    }
}

fn live_chains(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), LIVE, &["-pthread"]);
    let restored = |kind, preloaded: usize, image: Vec<u8>| {
        let image = Images(Arc::new(Mutex::new(vec![image])));
        let (status, said) = run(kind, &program, &[preloaded.to_string()], &image);
        (status, said.trim().to_owned())
    };
    for seed in 0..2 {
        let images = Images::default();
        let args = [seed.to_string(), "live".to_owned()];
        let (status, said) = run(kind, &program, &args, &images);
        assert_eq!(status, ExitStatus::Exited(0), "seed {seed}: {said}");
        let expected = (ExitStatus::Exited(0), said.trim().to_owned());
        let images = images.0.lock().unwrap();
        let chain = images.iter().map(Vec::as_slice).collect();
        let whole = chain::collapse(chain, Vec::new()).unwrap();
        for other in BOTH {
            assert_eq!(restored(other, 0, whole.clone()), expected, "seed {seed}");
            let preloaded = images.len() - 1;
            let said = restored(other, preloaded, images.concat());
            assert_eq!(said, expected, "seed {seed}, preloaded");
        }
        let (status, said) = restored(kind, 0, images[0].clone());
        assert_eq!(status, ExitStatus::Exited(9), "of no moment: {said}");
        let (status, said) = restored(kind, 1, [&*images[0], &images[2]].concat());
        assert_eq!(status, ExitStatus::Exited(9), "no chain: {said}");
    }
}

macro_rules! chain_tests {
    ($($name:ident: $chains:ident, $kind:ident;)*) => {
        $(
            #[test]
            #[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
            #[cfg_attr(not(has_write_tracking), ignore = "the host does not track writes (Linux 6.7 can)")]
            fn $name() {
                $chains(Kind::$kind);
            }
        )*
    };
}

chain_tests! {
    chains_of_kvm: chains, Kvm;
    chains_of_ptrace: chains, Ptrace;
    live_chains_of_kvm: live_chains, Kvm;
    live_chains_of_ptrace: live_chains, Ptrace;
}
