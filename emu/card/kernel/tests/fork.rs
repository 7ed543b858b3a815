//! What fork(2) shares is copied on write: parent and child each see their own, whoever writes, and
//! nothing is left over.

mod programs;

use std::sync::{Arc, Mutex};

use snaprig_card_driver::{
    device::{CharDevice, Pinned},
    errno::Errno,
    file::{Cx, Description, File},
    wait::SysResult,
};
use snaprig_card_kernel::ExitStatus;
use snaprig_card_memory::CardMemory;
use snaprig_card_platform::{Kind, on_both};

use programs::{check, compile, run_on};

/// A process that has touched more than half of the card's 128 MiB forks, and its children do.
fn more_than_half_of_a_card(kind: Kind) {
    let source = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define PAGES (77L << 8)
static long *all; static int bad;
static long *page(long i) { return all + i * 512; }
/* Every 50th page from `first` on is `mine`, the one behind it nobody's. */
static void write_some(long first, long mine) {
  for (long i = first; i + 1 < PAGES; i += 50) {
    if (*page(i) != i) bad++;
    *page(i) = mine;
  }
  for (long i = first; i + 1 < PAGES; i += 50) if (*page(i) != mine || *page(i + 1) != i + 1) bad++;
}
static int code(pid_t of) { int status; waitpid(of, &status, 0); return WIFEXITED(status) ? WEXITSTATUS(status) : 99; }
int main() {
  all = mmap(0, PAGES << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (long i = 0; i < PAGES; i++) *page(i) = i;
  pid_t child = fork();
  if (child == 0) {
    pid_t grandchild = fork();
    if (grandchild == 0) { write_some(9, -3); _exit(bad != 0); }
    if (grandchild < 0) _exit(2);
    bad += code(grandchild); write_some(5, -2); write_some(9, -2); _exit(bad != 0);
  }
  if (child < 0) { perror("fork"); return 1; }
  write_some(1, -1); bad += code(child); write_some(5, -1); write_some(9, -1);
  for (long i = 0; i < PAGES; i++) *page(i) = 1;
  printf("%d\n", bad); return 0;
}"#;
    check(kind, source, &["-static"], "0\n", ExitStatus::Exited(0));
}

/// A child that writes to more than there is is ended for it; its parent goes on.
fn more_than_there_is(kind: Kind) {
    let source = r#"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main() {
  size_t n = 77 << 20; int status;
  char *all = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(all, 1, n);
  if (fork() == 0) { memset(all, 2, n); _exit(0); }
  wait(&status); printf("%d\n", WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  for (size_t i = 0; i < n; i++) if (all[i] != 1) return 1;
  memset(all, 3, n); return 0;
}"#;
    check(kind, source, &["-static"], "1\n", ExitStatus::Exited(0));
}

/// A group is killed while its processes fork: no child escapes (fork(2) is made again after a signal that was pending).
fn nobody_of_a_group_escapes(kind: Kind) {
    let source = r#"
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main() {
  for (int round = 0; round < 60; round++) {
    int ready[2]; char byte;
    if (pipe(ready)) return 1;
    pid_t group = fork();
    if (group == 0) {
      alarm(0); setpgid(0, 0); write(ready[1], "", 1);
      for (;;) if (fork() > 0) _exit(0);
    }
    read(ready[0], &byte, 1); close(ready[0]); close(ready[1]);
    usleep(round * 379 % 3000);
    kill(-group, round % 2 ? SIGTERM : SIGKILL);
    alarm(60);
    while (wait(0) > 0) ;
  }
  puts("all"); return 0;
}"#;
    check(kind, source, &["-static"], "all\n", ExitStatus::Exited(0));
}

/// Threads write while another forks: each finds what it wrote last, reads what the others wrote, and
/// a child's memory stands still. Locks and waits go on meanwhile.
fn threads_write_meanwhile(kind: Kind) {
    let source = r#"
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { THREADS = 3, PAGES = 300, FORKS = 40 };
static volatile long *all; static volatile int over; static long lost[THREADS];
static struct { sem_t to, back; } *room;
static volatile long *word(long thread, long page) { return all + page * 512 + thread; }
static void *writer(void *number) {
  long me = (long)number;
  for (long n = 1; !over; n++)
    for (long page = 0; page < PAGES; page++) {
      if (*word(me, page) != n - 1) lost[me]++;
      *word(me, page) = n;
      if (*word(me, page) != n) lost[me]++;
    }
  return 0;
}
static void *echo(void *unused) {
  while (sem_wait(&room->to), !over) sem_post(&room->back);
  return 0;
}
int main() {
  pthread_t t[THREADS + 1]; long torn = 0, moved = 0, status;
  all = mmap(0, PAGES << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  room = (void *)(all + (PAGES - 1) * 512 + 64);
  sem_init(&room->to, 0, 0); sem_init(&room->back, 0, 0);
  for (long i = 0; i < THREADS; i++) pthread_create(t + i, 0, writer, (void *)i);
  pthread_create(t + THREADS, 0, echo, 0);
  for (int f = 0; f < FORKS; f++) {
    pid_t child = fork();
    if (child == 0) {
      static long seen[THREADS][PAGES]; int bad = 0;
      for (long i = 0; i < THREADS; i++) for (long p = 0; p < PAGES; p++) {
        seen[i][p] = *word(i, p);
        /* A thread writes the pages in order: what is behind is never newer. What is waited for is copied
           for the child a little earlier. */
        if (p > 0 && p < PAGES - 1 && (seen[i][p] > seen[i][p - 1] || seen[i][p] + 1 < seen[i][0])) bad |= 1;
      }
      usleep(1000);
      for (long i = 0; i < THREADS; i++) for (long p = 0; p < PAGES; p++) if (seen[i][p] != *word(i, p)) bad |= 2;
      for (long p = 0; p < PAGES; p++) *word(0, p) = -1;
      _exit(bad);
    }
    if (child < 0) return 1;
    sem_post(&room->to); sem_wait(&room->back);
    int status; waitpid(child, &status, 0);
    torn += WEXITSTATUS(status) & 1; moved += WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 1;
  }
  over = 1; sem_post(&room->to);
  for (int i = 0; i <= THREADS; i++) pthread_join(t[i], 0);
  printf("%ld %ld %ld %ld %ld\n", lost[0], lost[1], lost[2], torn, moved); return 0;
}"#;
    let flags = &["-static", "-pthread"];
    check(kind, source, flags, "0 0 0 0 0\n", ExitStatus::Exited(0));
}

/// Calls that change what is shared, and the kernel's own writes to it.
fn calls_on_what_is_shared(kind: Kind) {
    let source = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#define N (1 << 20)
static char *room(void) {
  char *p = mmap(0, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); memset(p, 'a', N); return p;
}
static int all(char *p, char c, long n) { for (long i = 0; i < n; i++) if (p[i] != c) return 0; return 1; }
int main() {
  char *read_in = room(), *moved = room(), *dropped = room(), *guarded = room(), *gone = room(), *shared, *file;
  shared = mmap(0, N, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int fd = open("/tmp/file", O_RDWR | O_CREAT, 0600), go[2], data[2]; pipe(go); pipe(data);
  ftruncate(fd, N); file = mmap(0, N, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0); memset(file, 'a', N);
  mprotect(guarded, N, PROT_READ);
  if (fork() == 0) {
    char byte; read(go[0], &byte, 1);
    int ok = all(read_in, 'a', N) && all(moved, 'a', N) && all(dropped, 'a', N) && all(guarded, 'a', N)
      && all(gone, 'a', N) && all(file, 'a', N);
    shared[N - 1] = ok; _exit(!ok);
  }
  write(data[1], "bbbb", 4); read(data[0], read_in + 4094, 4);
  char *at = mremap(moved, N, 2 * N, MREMAP_MAYMOVE); memset(at, 'b', 2 * N);
  madvise(dropped, N, MADV_DONTNEED); int zero = all(dropped, 0, N); memset(dropped, 'b', N);
  mprotect(guarded, N, PROT_READ | PROT_WRITE); memset(guarded, 'b', N);
  munmap(gone, N); memset(file, 'b', N); struct stat *s = (void *)(read_in + 65536); fstat(fd, s);
  write(go[1], "g", 1); int status; wait(&status);
  printf("%d %d %d %d\n", WEXITSTATUS(status), shared[N - 1], zero, s->st_size == N && !memcmp(read_in + 4093, "abbbba", 6));
  return 0;
}"#;
    check(
        kind,
        source,
        &["-static"],
        "0 1 1 1\n",
        ExitStatus::Exited(0),
    );
}

/// A file that pins a page and writes to it, as a DMA engine does.
struct Window {
    memory: Arc<CardMemory>,
    pinned: Mutex<Option<Pinned>>,
}

impl File for Window {
    fn ioctl(&self, cx: &mut Cx, request: u32, argument: u64) -> SysResult<i64> {
        let mut pinned = self.pinned.lock().unwrap();
        match request {
            1 => *pinned = Some(cx.memory.pin(argument, 4096, true)?),
            _ => {
                let window = pinned.as_ref().ok_or(Errno::EINVAL)?;
                self.memory.write(window.extents[0].0, &[argument as u8]);
            }
        }
        Ok(0)
    }

    fn describe(&self) -> Description {
        Description::Device {
            path: "/dev/window".into(),
            flags: libc::O_RDWR,
        }
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

struct Windows(Arc<CardMemory>);

impl CharDevice for Windows {
    fn open(&self, _: &mut Cx, _: i32) -> SysResult<Arc<dyn File>> {
        Ok(self.open_disconnected(0))
    }

    fn open_disconnected(&self, _: i32) -> Arc<dyn File> {
        Arc::new(Window {
            memory: self.0.clone(),
            pinned: Mutex::default(),
        })
    }
}

/// A pinned page stays its parent's: what arrives there after a fork the parent sees, and no child.
fn windows(kind: Kind) {
    let source = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main() {
  size_t sizes[] = {1 << 20, 32 << 20};
  for (int i = 0; i < 2; i++) {
    char *all = mmap(0, sizes[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), byte;
    memset(all, 'a', sizes[i]);
    char *at = (char *)(((long)all + sizes[i] / 2) & ~4095L);
    int window = open("/dev/window", O_RDWR), status, bad = 0, go[2]; pipe(go);
    for (int round = 0; round < 2; round++) {
      /* The second time what is pinned is shared with a child. */
      pid_t before = fork(); if (before == 0) { read(go[0], &byte, 1); _exit(*at != 'a'); }
      if (ioctl(window, 1, at)) return 1;
      pid_t after = fork(); if (after == 0) { read(go[0], &byte, 1); _exit(*at != 'a'); }
      ioctl(window, 2, 'd'); bad += *at != 'd'; at[1] = 'p'; ioctl(window, 2, 'e'); bad += *at != 'e' || at[1] != 'p';
      write(go[1], "gg", 2);
      for (int n = 0; n < 2; n++) { wait(&status); bad += status != 0; }
      ioctl(window, 2, 'a'); bad += *at != 'a';
    }
    printf("%d\n", bad);
  }
  return 0;
}"#;
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "program", source, &["-static"]);
    let ran = run_on(kind, &program, &[], |kernel, memory| {
        kernel.register_device("/dev/window", Arc::new(Windows(memory.clone())));
    });
    assert_eq!((&*ran.out, ran.status), ("0\n0\n", ExitStatus::Exited(0)));
}

/// Forks and exits, in every order, leave all of the card's memory to who comes after.
fn nothing_is_left_over(kind: Kind) {
    let source = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>
static long free_kib(void) { struct sysinfo s; sysinfo(&s); return s.freeram * s.mem_unit >> 10; }
int main() {
  size_t n = 20 << 20; long first = 0, i;
  char *all = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(all, 1, n);
  for (i = 0; i < 60; i++) {
    pid_t child = fork();
    if (child < 0) { perror("fork"); return 1; }
    if (child == 0) {
      if (i % 3 == 0) all[i * 300000] = 2;
      if (i % 4 == 0) munmap(all + n / 2, n / 2);
      if (i % 5 == 0 && fork() == 0) { all[i * 300000] = 3; _exit(0); }
      if (i % 7 == 0) pause();
      while (wait(0) > 0);
      _exit(0);
    }
    if (i % 2 == 0) all[i * 200000] = 4;
    if (i % 7 == 0) kill(child, SIGKILL);
    waitpid(child, 0, 0);
    if (i == 9) first = free_kib();
  }
  long lost = first - free_kib();
  printf("%d\n", lost < 512); if (lost >= 512) printf("%ld KiB\n", lost);
  return 0;
}"#;
    check(kind, source, &["-static"], "1\n", ExitStatus::Exited(0));
}

on_both! {
    more_than_half_of_a_card
    more_than_there_is
    nobody_of_a_group_escapes
    threads_write_meanwhile
    calls_on_what_is_shared
    windows
    nothing_is_left_over
}
