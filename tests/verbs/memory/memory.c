// Registered memory of every kind: a write and a read through a queue pair connected to itself reach it, the program
// sees what came, other data in the same pages stays, fork(2) gives a child copies, and memory outlives its region.
//
// gcc -O1 -Wall -Wextra -o memory tests/verbs/memory/memory.c -libverbs -lpthread
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(is) do { if (!(is)) { printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #is); exit(1); } } while (0)
enum { BYTES = 5000, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void connect_to_itself(void) {
  struct ibv_port_attr port;
  CHECK(!ibv_query_port(context, 1, &port));
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
    .max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = {.dlid = port.lid, .port_num = 1}};
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
  CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
    IBV_QP_MAX_QP_RD_ATOMIC));
}

static void move(enum ibv_wr_opcode opcode, struct ibv_mr *local, char *here, struct ibv_mr *remote, char *there) {
  struct ibv_sge sge = {(uintptr_t)here, BYTES, local->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
    .wr.rdma = {(uintptr_t)there, remote->rkey}}, *bad;
  CHECK(!ibv_post_send(qp, &wr, &bad));
  struct ibv_wc wc;
  int n;
  while (!(n = ibv_poll_cq(cq, 1, &wc)));
  CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
}

static void fill(char *at, int seed) { for (int i = 0; i < BYTES; i++) at[i] = (char)(i * 7 + seed); }
static int same(const char *a, int seed) {
  for (int i = 0; i < BYTES; i++) if (a[i] != (char)(i * 7 + seed)) return 0;
  return 1;
}

// Writes into `at` and reads out of it, from and to memory of another kind.
static void both_ways(const char *kind, char *at) {
  char *other = malloc(3 * BYTES);
  struct ibv_mr *theirs = ibv_reg_mr(pd, other, 3 * BYTES, ALL);
  fill(at, 1);
  struct ibv_mr *mr = ibv_reg_mr(pd, at, BYTES, ALL);
  CHECK(theirs && mr);
  CHECK(same(at, 1));
  move(IBV_WR_RDMA_READ, theirs, other, mr, at);
  CHECK(same(other, 1));
  fill(other, 2);
  move(IBV_WR_RDMA_WRITE, theirs, other, mr, at);
  CHECK(same(at, 2));
  fill(at, 3);
  move(IBV_WR_RDMA_WRITE, mr, at, theirs, other + BYTES);
  CHECK(same(other + BYTES, 3));
  CHECK(!ibv_dereg_mr(mr));
  CHECK(same(at, 3));
  CHECK(!ibv_dereg_mr(theirs));
  CHECK(same(other, 2));
  free(other);
  printf("%s: ok\n", kind);
}

static void *map(int flags, int fd, size_t bytes) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  return at == MAP_FAILED ? NULL : at;
}

static char in_data[2 * BYTES] = "not zero", in_bss[2 * BYTES];

static void kinds(void) {
  char *heap = malloc(BYTES + 2000);
  both_ways("heap, in the middle of pages", heap + 1001);
  free(heap);
  char stack[2 * BYTES];
  both_ways("stack", stack + 17);
  both_ways("data", in_data);
  both_ways("bss", in_bss);
  both_ways("private mapping", map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 1 << 16));
  both_ways("shared mapping", map(MAP_SHARED | MAP_ANONYMOUS, -1, 1 << 16));
  FILE *file = tmpfile();
  CHECK(!ftruncate(fileno(file), 1 << 16));
  both_ways("file", map(MAP_SHARED, fileno(file), 1 << 16));
  both_ways("private file", map(MAP_PRIVATE, fileno(file), 1 << 16));
  char *huge = map(MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 2 << 20);
  if (huge) both_ways("huge pages", huge);
  else printf("huge pages: skipped, none are reserved\n");
  char *large = map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 8 << 20);
  CHECK(!madvise(large, 8 << 20, MADV_HUGEPAGE));
  memset(large, 1, 8 << 20);
  both_ways("transparent huge pages", large + (3 << 20) - 100);
}

// Regions that overlap: a page is shared for as long as one of them is there.
static void overlaps(void) {
  char *at = map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 1 << 16);
  struct ibv_mr *a = ibv_reg_mr(pd, at, 3 * 4096, ALL), *b = ibv_reg_mr(pd, at + 4096, 4 * 4096, ALL);
  CHECK(a && b);
  fill(at + 4096, 5);
  CHECK(!ibv_dereg_mr(a));
  move(IBV_WR_RDMA_READ, b, at + 3 * 4096 - 1000, b, at + 4096);
  CHECK(same(at + 3 * 4096 - 1000, 5));
  CHECK(!ibv_dereg_mr(b));
  CHECK(same(at + 3 * 4096 - 1000, 5));
  CHECK(!munmap(at, 1 << 16));
  printf("overlapping regions: ok\n");
}

// A region whose memory is unmapped hurts nobody, and its place can be mapped and registered anew.
static void unmapped(void) {
  char *at = map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 1 << 16);
  struct ibv_mr *mr = ibv_reg_mr(pd, at, BYTES, ALL), *other = ibv_reg_mr(pd, in_bss, BYTES, ALL);
  fill(at, 6);
  CHECK(!munmap(at, 1 << 16));
  move(IBV_WR_RDMA_READ, other, in_bss, mr, at);
  CHECK(same(in_bss, 6));
  CHECK(!ibv_dereg_mr(mr));
  char *again = mmap(at, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  CHECK(again == at && at[0] == 0);
  both_ways("mapped again at the same place", at);
  CHECK(!ibv_dereg_mr(other));
}

static void forks(void) {
  char *at = malloc(BYTES);
  struct ibv_mr *mr = ibv_reg_mr(pd, at, BYTES, ALL);
  fill(at, 7);
  for (int i = 0; i < 20; i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
      if (!same(at, 7)) _exit(1);
      memset(at, 0, BYTES);
      _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    CHECK(same(at, 7));
  }
  char *other = malloc(BYTES);
  struct ibv_mr *theirs = ibv_reg_mr(pd, other, BYTES, ALL);
  move(IBV_WR_RDMA_READ, theirs, other, mr, at);
  CHECK(same(other, 7));
  CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(theirs));
  printf("fork: ok\n");
}

// Memory that takes the place of other memory whose region goes only afterwards: a cache of regions does that.
static void replaced(void) {
  char *at = map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 1 << 16);
  struct ibv_mr *old = ibv_reg_mr(pd, at, 2 * BYTES, ALL);
  CHECK(old && !munmap(at, 1 << 16));
  char *again = mmap(at, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  CHECK(again == at);
  fill(at, 8);
  struct ibv_mr *mr = ibv_reg_mr(pd, at, BYTES, ALL), *other = ibv_reg_mr(pd, in_bss, BYTES, ALL);
  CHECK(mr && other && !ibv_dereg_mr(old));
  move(IBV_WR_RDMA_READ, other, in_bss, mr, at);
  CHECK(same(in_bss, 8));
  fill(in_bss, 9);
  move(IBV_WR_RDMA_WRITE, other, in_bss, mr, at);
  CHECK(same(at, 9));
  CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(other) && !munmap(at, 1 << 16));
  printf("replaced before its region went: ok\n");
}

// Memory that realloc(3) moves before its region goes keeps what is in it.
static void moved(void) {
  char *at = map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 1 << 16);
  char *to = map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 1 << 16);
  struct ibv_mr *mr = ibv_reg_mr(pd, at, BYTES, ALL);
  fill(at, 10);
  CHECK(mr && mremap(at, 1 << 16, 1 << 16, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
  pid_t child = fork();
  if (!child) _exit(!same(to, 10));
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
  CHECK(!ibv_dereg_mr(mr) && same(to, 10));
  both_ways("moved", to);
  CHECK(!munmap(to, 1 << 16));
}

static atomic_int stop;
static void *writer(void *arg) {
  volatile long *count = arg;
  long mine = 0;
  for (; !atomic_load(&stop); mine++) *count += 1;
  return (void *)mine;
}

// Pages are moved while another thread writes beside the buffer: it loses no write.
static void moves_under_a_writer(void) {
  char *at = map(MAP_PRIVATE | MAP_ANONYMOUS, -1, 1 << 16);
  long *counts = (long *)(at + 4000);
  pthread_t thread;
  CHECK(!pthread_create(&thread, NULL, writer, counts));
  for (int i = 0; i < 300; i++) {
    struct ibv_mr *mr = ibv_reg_mr(pd, at, 3000, ALL);
    CHECK(mr && !ibv_dereg_mr(mr));
  }
  atomic_store(&stop, 1);
  void *mine;
  CHECK(!pthread_join(thread, &mine));
  CHECK(counts[0] == (long)mine && mine);
  printf("a writer meanwhile: ok\n");
}

int main(void) {
  setvbuf(stdout, NULL, _IONBF, 0);
  int count;
  struct ibv_device **list = ibv_get_device_list(&count);
  CHECK(list && count);
  context = ibv_open_device(list[0]);
  CHECK(context);
  ibv_free_device_list(list);
  pd = ibv_alloc_pd(context);
  cq = ibv_create_cq(context, 10, NULL, NULL, 0);
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
    .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
  qp = ibv_create_qp(pd, &init);
  CHECK(qp);
  connect_to_itself();
  kinds();
  overlaps();
  unmapped();
  replaced();
  moved();
  forks();
  moves_under_a_writer();
  CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
  return 0;
}
