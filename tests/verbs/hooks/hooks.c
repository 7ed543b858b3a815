// Has munmap(2) come to a function of its own as soon as it has a device: writes a jump over libc's, as the memory hooks of
// Open MPI do (opal/mca/patcher). No thread that the library has started may be in there.
//
// gcc -O1 -Wall -Wextra -o hooks tests/verbs/hooks/hooks.c -libverbs -lpthread
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is) do { if (!(is)) { printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #is); _exit(1); } } while (0)
enum { ROUNDS = 300, AT_ONCE = 8, PAGE = 4096 };

static int hook(void *address, size_t bytes) { return syscall(SYS_munmap, address, bytes); }

static void install(void) {
  unsigned char jump[] = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3}; // movabs $hook, %r11; jmp *%r11
  uintptr_t to = (uintptr_t)hook, page = (uintptr_t)munmap / PAGE * PAGE;
  memcpy(jump + 2, &to, sizeof to);
  CHECK(!mprotect((void *)page, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC));
  memcpy((void *)munmap, jump, sizeof jump);
  CHECK(!mprotect((void *)page, 2 * PAGE, PROT_READ | PROT_EXEC));
}

static void round_of(int number) {
  struct ibv_device **devices = ibv_get_device_list(NULL);
  CHECK(devices && devices[0]);
  struct ibv_context *context = ibv_open_device(devices[0]);
  CHECK(context);
  for (volatile int spun = 0; spun < number % 30 * 1000; spun++) continue;
  install();
  for (int more = 0; more < 10; more++) {
    struct ibv_pd *pd = ibv_alloc_pd(context);
    CHECK(pd && !ibv_dealloc_pd(pd));
  }
}

int main(void) {
  int good = 0;
  for (int number = 0; number < ROUNDS; number++) {
    // More than there are processors, so that threads are left in the middle of things.
    pid_t children[AT_ONCE];
    for (int one = 0; one < AT_ONCE; one++) {
      children[one] = fork();
      if (!children[one]) {
        round_of(number);
        _exit(0);
      }
    }
    for (int one = 0; one < AT_ONCE; one++) {
      int status;
      good += waitpid(children[one], &status, 0) == children[one] && !status;
    }
  }
  printf("%d of %d\n", good, ROUNDS * AT_ONCE);
  return 0;
}
