// Atomic operations: eight bytes in host order, the old value comes back.
#include "check.h"

static const char *got; // what completed, taken before what is to be seen afterwards

static void one(struct pair *p, const char *name, enum ibv_wr_opcode opcode, uint64_t before, uint64_t compare_add, uint64_t swap) {
  uint64_t *target = (uint64_t *)(p->b.buf + 64), *result = (uint64_t *)p->a.buf;
  *target = before;
  *result = 0xdead;
  struct ibv_sge sge = part_of(&p->a, 0, 8);
  struct ibv_send_wr wr = atomic_wr(&sge, opcode, 1, at(&p->b, 64), p->b.mr->rkey, compare_add, swap);
  int failed = post_wr(p->a.qp, &wr);
  if (failed) return say(name, "post %s", rc(failed));
  const char *sent = completions(p->a.send, 1, LONG);
  say(name, "%s; was 0x%llx, is 0x%llx", sent, (unsigned long long)*result, (unsigned long long)*target);
}

static void values(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  one(&p, "add", IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 7, 0);
  one(&p, "add_nothing", IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0, 0);
  one(&p, "add_wraps", IBV_WR_ATOMIC_FETCH_AND_ADD, UINT64_MAX, 2, 0);
  one(&p, "add_large", IBV_WR_ATOMIC_FETCH_AND_ADD, 0x0102030405060708, 0x1000000000000001, 0);
  one(&p, "swap_equal", IBV_WR_ATOMIC_CMP_AND_SWP, 0x1122334455667788, 0x1122334455667788, 0x99aabbccddeeff00);
  one(&p, "swap_unequal", IBV_WR_ATOMIC_CMP_AND_SWP, 0x1122334455667788, 0x1122334455667789, 0x99aabbccddeeff00);
  pair_close(&p);
}

// What fails, each on a pair of its own; both sides' statuses.
static void bad(const char *name, unsigned qp_access, unsigned mr_access, size_t offset, uint32_t length, uint32_t key_change) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  o.qp_access = qp_access;
  o.mr_access = mr_access;
  if (!pair_open(&p, &o)) return;
  struct ibv_sge sge = part_of(&p.a, 0, length);
  struct ibv_send_wr wr = atomic_wr(&sge, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, at(&p.b, offset), p.b.mr->rkey ^ key_change, 1, 0);
  post_recv(&p.b, 7, 1000, 10);
  int failed = post_wr(p.a.qp, &wr);
  const char *sent = failed ? "" : completions(p.a.send, 1, LONG);
  got = completions(p.b.recv, 1, SHORT);
  say(name, "post %s; %s; responder %s; states %s %s", rc(failed), *sent ? sent : "-", got, state_name(state_of(p.a.qp)),
      state_name(state_of(p.b.qp)));
  pair_close(&p);
}

static void errors(void) {
  bad("misaligned_1", REMOTE_ALL, ALL_ACCESS, 65, 8, 0);
  bad("misaligned_4", REMOTE_ALL, ALL_ACCESS, 68, 8, 0);
  bad("bad_rkey", REMOTE_ALL, ALL_ACCESS, 64, 8, 0x5a00);
  bad("beyond_end", REMOTE_ALL, ALL_ACCESS, 1 << 16, 8, 0);
  bad("no_atomic_in_mr", REMOTE_ALL, ALL_ACCESS & ~IBV_ACCESS_REMOTE_ATOMIC, 64, 8, 0);
  bad("no_atomic_in_qp", REMOTE_ALL & ~IBV_ACCESS_REMOTE_ATOMIC, ALL_ACCESS, 64, 8, 0);
  bad("length_4", REMOTE_ALL, ALL_ACCESS, 64, 4, 0);
  bad("length_16", REMOTE_ALL, ALL_ACCESS, 64, 16, 0);
}

static void result_unwritable(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_mr *mr = ibv_reg_mr(p.pd, p.a.buf, 4096, 0);
  struct ibv_sge sge = {.addr = at(&p.a, 0), .length = 8, .lkey = mr ? mr->lkey : 0};
  struct ibv_send_wr wr = atomic_wr(&sge, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, at(&p.b, 64), p.b.mr->rkey, 1, 0);
  say("post", "%s", RC(post_wr(p.a.qp, &wr)));
  say("send", "%s", completions(p.a.send, 1, LONG));
  say("state", "%s", state_name(state_of(p.a.qp)));
  if (mr) ibv_dereg_mr(mr);
  pair_close(&p);
}

static void many(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  o.rd_atomic = 2;
  if (!pair_open(&p, &o)) return;
  memset(p.b.buf, 0, 8);
  for (int i = 0; i < 16; i++) {
    struct ibv_sge sge = part_of(&p.a, 8 * i, 8);
    struct ibv_send_wr wr = atomic_wr(&sge, IBV_WR_ATOMIC_FETCH_AND_ADD, i, at(&p.b, 0), p.b.mr->rkey, 1, 0);
    wr.send_flags = i == 15 ? IBV_SEND_SIGNALED : 0;
    post_wr(p.a.qp, &wr);
  }
  say("completion", "%s", completions(p.a.send, 1, LONG));
  const uint64_t *results = (uint64_t *)p.a.buf;
  bool in_order = true;
  for (int i = 0; i < 16; i++) in_order &= results[i] == (uint64_t)i;
  say("in_order", "%s", yes(in_order));
  say("sum", "0x%llx", (unsigned long long)*(uint64_t *)p.b.buf);
  pair_close(&p);
}

const struct check atomic_checks[] = {{"values", values}, {"errors", errors}, {"result_unwritable", result_unwritable},
                                      {"many", many}, {0}};
