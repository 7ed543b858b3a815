//! Copies that end early where a program may not copy, instead of with a signal.

mod images;

use snaprig_card_kernel::ExitStatus;
use snaprig_card_platform::testing::BOTH;

use images::{Images, compile, run};

const PROGRAM: &str = r#"
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static size_t copy(void *to, const void *from, size_t left) {
  __asm__ volatile("rep movsb\n.byte 0x0f, 0x1f, 0x80\n.ascii \"SNAP\""
                   : "+c"(left), "+D"(to), "+S"(from) : : "memory");
  return left;
}
static void bare(void *to, const void *from, size_t left) {
  __asm__ volatile("rep movsb" : "+c"(left), "+D"(to), "+S"(from) : : "memory");
}
static void died(int signal) { printf("bare: signal %d\n", signal); fflush(stdout); _exit(0); }
int main(void) {
  char *two = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), own[64] = {1, 2, 3};
  munmap(two + 4096, 4096);
  size_t left = copy(two, own, 64);
  printf("good: %zu left, %d\n", left, memcmp(two, own, 64));
  printf("none: %zu left\n", copy(0, own, 0));
  printf("the end of a mapping: %zu left\n", copy(two + 4096 - 10, own, 64));
  printf("from nowhere: %zu left\n", copy(own, two + 4096, 64));
  char *ro = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  printf("null: %zu left\n", copy(0, own, 64));
  printf("read only: %zu left\n", copy(ro, own, 64));
  printf("no address at all: %zu left\n", copy((void *)(uintptr_t)0x8000000000000000, own, 64));
  signal(SIGSEGV, died);
  fflush(stdout);
  bare(0, own, 64);
  return 1;
}
"#;

const EXPECTED: &str = "\
good: 0 left, 0
none: 0 left
the end of a mapping: 54 left
from nowhere: 64 left
null: 64 left
read only: 64 left
no address at all: 64 left
bare: signal 11
";

#[test]
#[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
fn marked_copies_say_how_much_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), PROGRAM, &[]);
    for kind in BOTH {
        let (status, out) = run(kind, &program, &[], &Images::default());
        assert_eq!(
            (status, out),
            (ExitStatus::Exited(0), EXPECTED.into()),
            "{kind}"
        );
    }
}
