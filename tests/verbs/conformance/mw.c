// Memory windows: type 1 is bound by a call of its own, type 2 by a send request, and invalidated by more of them.
#include "check.h"

enum { WINDOW = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, START = 4096, LENGTH = 4096 };

static const char *got; // what completed, taken before what is to be seen afterwards

// a writes to b's memory by the key; returns its completion.
static const char *write_by(struct pair *p, uint32_t rkey, uint64_t address, uint32_t size) {
  struct ibv_sge sge = part_of(&p->a, 0, size);
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE, 50, address, rkey);
  int failed = post_wr(p->a.qp, &wr);
  return failed ? rc(failed) : completions(p->a.send, 1, LONG);
}

static const char *read_by(struct pair *p, uint32_t rkey, uint64_t address, uint32_t size) {
  struct ibv_sge sge = part_of(&p->a, 0, size);
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_READ, 51, address, rkey);
  int failed = post_wr(p->a.qp, &wr);
  return failed ? rc(failed) : completions(p->a.send, 1, LONG);
}

static struct ibv_mw_bind_info info_of(struct ibv_mr *mr, uint64_t address, uint64_t length, unsigned access) {
  return (struct ibv_mw_bind_info){.mr = mr, .addr = address, .length = length, .mw_access_flags = access};
}

static const char *bind_1(struct side *side, struct ibv_mw *mw, struct ibv_mw_bind_info info) {
  struct ibv_mw_bind bind = {.wr_id = 60, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};
  errno = 0;
  int failed = ibv_bind_mw(side->qp, mw, &bind);
  return failed ? rc(failed) : completions(side->send, 1, LONG);
}

static const char *bind_2(struct side *side, struct ibv_mw *mw, uint32_t rkey, struct ibv_mw_bind_info info) {
  struct ibv_send_wr wr = {.wr_id = 61, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
  wr.bind_mw.mw = mw;
  wr.bind_mw.rkey = rkey;
  wr.bind_mw.bind_info = info;
  int failed = post_wr(side->qp, &wr);
  if (failed) return rc(failed);
  const char *done = completions(side->send, 1, LONG);
  if (!strcmp(done, "#61 BIND_MW")) mw->rkey = rkey;
  return done;
}

static const char *invalidate(struct side *side, uint32_t rkey) {
  struct ibv_send_wr wr = {.wr_id = 62, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey};
  int failed = post_wr(side->qp, &wr);
  return failed ? rc(failed) : completions(side->send, 1, LONG);
}

// A pair with a window of the type, not yet bound.
static struct ibv_mw *open_with(struct pair *p, enum ibv_mw_type type) {
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(p, &o)) return NULL;
  struct ibv_mw *mw = ibv_alloc_mw(p->pd, type);
  if (mw) return mw;
  say("setup", "%s", errno_name(errno));
  pair_close(p);
  return NULL;
}

static void close_with(struct pair *p, struct ibv_mw *mw) {
  ibv_dealloc_mw(mw);
  pair_close(p);
}

static void alloc(void) {
  static const enum ibv_mw_type types[] = {IBV_MW_TYPE_1, IBV_MW_TYPE_2, 0, 3};
  for (int i = 0; i < 4; i++) {
    struct ibv_mw *mw;
    say(text("type_%d", types[i]), "%s", MADE(mw, ibv_alloc_mw(suite.pd, types[i])));
    if (!mw) continue;
    say(text("type_%d_fields", types[i]), "%s", yes(mw->pd == suite.pd && mw->context == suite.ctx && mw->type == types[i]));
    say(text("type_%d_has_key", types[i]), "%s", yes(mw->rkey));
    say(text("type_%d_dealloc", types[i]), "%s", RC(ibv_dealloc_mw(mw)));
  }
  struct ibv_pd *pd = ibv_alloc_pd(suite.ctx);
  struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  say("pd_busy", "%s", RC(ibv_dealloc_pd(pd)));
  if (mw) ibv_dealloc_mw(mw);
  ibv_dealloc_pd(pd);
}

static void inc_rkey(void) {
  say(NULL, "0x%x 0x%x", ibv_inc_rkey(0x12345678), ibv_inc_rkey(0x123456ff));
}

static void type_1(void) {
  struct pair p;
  struct ibv_mw *mw = open_with(&p, IBV_MW_TYPE_1);
  if (!mw) return;
  uint32_t first = mw->rkey;
  say("bind", "%s", bind_1(&p.b, mw, info_of(p.b.mr, at(&p.b, START), LENGTH, WINDOW)));
  say("new_key", "%s", yes(mw->rkey != first));
  fill(p.a.buf, 100, 1);
  got = write_by(&p, mw->rkey, at(&p.b, START), 100);
  say("write", "%s, data %s", got, filled(p.b.buf + START, 100, 1) ? "ok" : "wrong");
  say("read", "%s", read_by(&p, mw->rkey, at(&p.b, START + LENGTH - 100), 100));
  uint32_t old = mw->rkey;
  say("rebind", "%s", bind_1(&p.b, mw, info_of(p.b.mr, at(&p.b, 2 * START), LENGTH, WINDOW)));
  say("write_again", "%s", write_by(&p, mw->rkey, at(&p.b, 2 * START), 100));
  say("dereg_bound_mr", "%s", RC(ibv_dereg_mr(p.b.mr)));
  say("write_by_old_key", "%s", write_by(&p, old, at(&p.b, START), 100));
  close_with(&p, mw);
}

static void type_1_unbind(void) {
  struct pair p;
  struct ibv_mw *mw = open_with(&p, IBV_MW_TYPE_1);
  if (!mw) return;
  say("bind", "%s", bind_1(&p.b, mw, info_of(p.b.mr, at(&p.b, START), LENGTH, WINDOW)));
  say("unbind", "%s", bind_1(&p.b, mw, info_of(p.b.mr, 0, 0, 0)));
  say("write", "%s", write_by(&p, mw->rkey, at(&p.b, START), 100));
  close_with(&p, mw);
}

static void type_1_errors(void) {
  struct pair p;
  struct ibv_mw *mw = open_with(&p, IBV_MW_TYPE_1);
  if (!mw) return;
  struct ibv_mr *other = ibv_reg_mr(suite.pd, p.b.buf, 8192, ALL_ACCESS);
  struct ibv_mr *unbindable = ibv_reg_mr(p.pd, p.b.buf, 8192, ALL_ACCESS & ~IBV_ACCESS_MW_BIND);
  struct ibv_mr *read_only = ibv_reg_mr(p.pd, p.b.buf, 8192, IBV_ACCESS_MW_BIND);
  say("no_mr", "%s", bind_1(&p.b, mw, info_of(NULL, at(&p.b, 0), 100, WINDOW)));
  say("other_pd", "%s", bind_1(&p.b, mw, info_of(other, at(&p.b, 0), 100, WINDOW)));
  say("local_write", "%s", bind_1(&p.b, mw, info_of(p.b.mr, at(&p.b, 0), 100, WINDOW | IBV_ACCESS_LOCAL_WRITE)));
  say("zero_based", "%s", bind_1(&p.b, mw, info_of(p.b.mr, at(&p.b, 0), 100, WINDOW | IBV_ACCESS_ZERO_BASED)));
  say("mr_without_bind", "%s", bind_1(&p.b, mw, info_of(unbindable, at(&p.b, 0), 100, WINDOW)));
  say("state_1", "%s", state_name(state_of(p.b.qp)));
  say("write_on_read_only", "%s", bind_1(&p.b, mw, info_of(read_only, at(&p.b, 0), 100, WINDOW)));
  say("state_2", "%s", state_name(state_of(p.b.qp)));
  ibv_dereg_mr(other);
  ibv_dereg_mr(unbindable);
  ibv_dereg_mr(read_only);
  close_with(&p, mw);
}

static void type_2(void) {
  struct pair p;
  struct ibv_mw *mw = open_with(&p, IBV_MW_TYPE_2);
  if (!mw) return;
  say("bind", "%s", bind_2(&p.b, mw, ibv_inc_rkey(mw->rkey), info_of(p.b.mr, at(&p.b, START), LENGTH, WINDOW)));
  fill(p.a.buf, 100, 1);
  got = write_by(&p, mw->rkey, at(&p.b, START), 100);
  say("write", "%s, data %s", got, filled(p.b.buf + START, 100, 1) ? "ok" : "wrong");
  say("read", "%s", read_by(&p, mw->rkey, at(&p.b, START + LENGTH - 100), 100));
  say("dereg_bound_mr", "%s", RC(ibv_dereg_mr(p.b.mr)));
  say("invalidate", "%s", invalidate(&p.b, mw->rkey));
  say("dereg_after", "%s", RC(ibv_dereg_mr(p.b.mr)));
  p.b.mr = NULL;
  say("write_after", "%s", write_by(&p, mw->rkey, at(&p.b, START), 100));
  close_with(&p, mw);
}

static void type_2_rebind(void) {
  struct pair p;
  struct ibv_mw *mw = open_with(&p, IBV_MW_TYPE_2);
  if (!mw) return;
  struct ibv_mw_bind_info info = info_of(p.b.mr, at(&p.b, START), LENGTH, WINDOW);
  say("bind", "%s", bind_2(&p.b, mw, ibv_inc_rkey(mw->rkey), info));
  say("invalidate", "%s", invalidate(&p.b, mw->rkey));
  say("bind_again", "%s", bind_2(&p.b, mw, ibv_inc_rkey(mw->rkey), info));
  say("write", "%s", write_by(&p, mw->rkey, at(&p.b, START), 100));
  // Bound already: type 2 has to be invalidated first.
  say("bind_bound", "%s", bind_2(&p.b, mw, ibv_inc_rkey(mw->rkey), info));
  say("state", "%s", state_name(state_of(p.b.qp)));
  close_with(&p, mw);
}

static void type_2_remote_invalidate(void) {
  struct pair p;
  struct ibv_mw *mw = open_with(&p, IBV_MW_TYPE_2);
  if (!mw) return;
  say("bind", "%s", bind_2(&p.b, mw, ibv_inc_rkey(mw->rkey), info_of(p.b.mr, at(&p.b, START), LENGTH, WINDOW)));
  post_recv(&p.b, 1, 0, 100);
  struct ibv_send_wr wr = {.wr_id = 2, .opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = mw->rkey};
  say("post", "%s", RC(post_wr(p.a.qp, &wr)));
  say("send", "%s", completions(p.a.send, 1, LONG));
  struct ibv_wc wc;
  if (next_wc(p.b.recv, &wc, 3000)) {
    say("receive", "%s", describe(&wc));
    say("key", "%s", wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == mw->rkey ? "same" : "different");
  }
  say("write_after", "%s", write_by(&p, mw->rkey, at(&p.b, START), 100));
  close_with(&p, mw);
}

// What the window does not allow; each on a pair of its own.
static void limits(void) {
  static const char *const names[] = {"write_to_read_window", "read_from_write_window", "before_start", "beyond_end",
                                      "atomic_without_access", "unbound", "by_mr_key_still"};
  for (int i = 0; i < 7; i++) {
    struct pair p;
    struct ibv_mw *mw = open_with(&p, IBV_MW_TYPE_2);
    if (!mw) return;
    unsigned access = i == 0 ? IBV_ACCESS_REMOTE_READ : i == 1 ? IBV_ACCESS_REMOTE_WRITE : (unsigned)WINDOW;
    if (i != 5) bind_2(&p.b, mw, ibv_inc_rkey(mw->rkey), info_of(p.b.mr, at(&p.b, START), LENGTH, access));
    switch (i) {
    case 1: got = read_by(&p, mw->rkey, at(&p.b, START), 8); break;
    case 2: got = write_by(&p, mw->rkey, at(&p.b, START - 1), 8); break;
    case 3: got = write_by(&p, mw->rkey, at(&p.b, START + LENGTH - 7), 8); break;
    case 4: {
      struct ibv_sge sge = part_of(&p.a, 0, 8);
      struct ibv_send_wr wr = atomic_wr(&sge, IBV_WR_ATOMIC_FETCH_AND_ADD, 52, at(&p.b, START), mw->rkey, 1, 0);
      int failed = post_wr(p.a.qp, &wr);
      got = failed ? rc(failed) : completions(p.a.send, 1, LONG);
      break;
    }
    case 6: got = write_by(&p, p.b.mr->rkey, at(&p.b, 0), 8); break;
    default: got = write_by(&p, mw->rkey, at(&p.b, START), 8);
    }
    say(names[i], "%s; states %s %s", got, state_name(state_of(p.a.qp)), state_name(state_of(p.b.qp)));
    close_with(&p, mw);
  }
}

// Binding what cannot be bound; each on a pair of its own.
static void type_2_errors(void) {
  static const char *const names[] = {"other_pd", "beyond_region", "same_key", "other_index", "by_call", "mr_without_bind",
                                      "invalidate_nothing", "invalidate_mr", "zero_length"};
  for (int i = 0; i < 9; i++) {
    struct pair p;
    struct ibv_mw *mw = open_with(&p, IBV_MW_TYPE_2);
    if (!mw) return;
    struct ibv_mr *other = ibv_reg_mr(i ? p.pd : suite.pd, p.b.buf, 8192, i ? ALL_ACCESS & ~IBV_ACCESS_MW_BIND : (int)ALL_ACCESS);
    struct ibv_mw_bind_info info = info_of(p.b.mr, at(&p.b, START), LENGTH, WINDOW);
    uint32_t next = ibv_inc_rkey(mw->rkey);
    switch (i) {
    case 0: info.mr = other; info.addr = at(&p.b, 0); got = bind_2(&p.b, mw, next, info); break;
    case 1: info.length = 1 << 17; got = bind_2(&p.b, mw, next, info); break;
    case 2: got = bind_2(&p.b, mw, mw->rkey, info); break;
    case 3: got = bind_2(&p.b, mw, next ^ 0x5a00, info); break;
    case 4: got = bind_1(&p.b, mw, info); break;
    case 5: info.mr = other; info.addr = at(&p.b, 0); got = bind_2(&p.b, mw, next, info); break;
    case 6: got = invalidate(&p.b, 0x5a5a00); break;
    case 7: got = invalidate(&p.b, p.b.mr->rkey); break;
    default: info.length = 0; got = bind_2(&p.b, mw, next, info);
    }
    say(names[i], "%s; %s", got, state_name(state_of(p.b.qp)));
    ibv_dereg_mr(other);
    close_with(&p, mw);
  }
}

static void invalidate_unbound(void) {
  struct pair p;
  struct ibv_mw *mw = open_with(&p, IBV_MW_TYPE_2);
  if (!mw) return;
  got = invalidate(&p.b, mw->rkey);
  say(NULL, "%s; %s", got, state_name(state_of(p.b.qp)));
  close_with(&p, mw);
}

// A window of type 2 is usable through the queue pair it was bound on.
static void other_qp(void) {
  struct pair p, other;
  struct ibv_mw *mw = open_with(&p, IBV_MW_TYPE_2);
  if (!mw) return;
  struct options o = defaults(IBV_QPT_RC);
  say("bind", "%s", bind_2(&p.b, mw, ibv_inc_rkey(mw->rkey), info_of(p.b.mr, at(&p.b, START), LENGTH, WINDOW)));
  if (pair_open(&other, &o)) {
    struct ibv_qp *on_same_pd = make_qp(p.pd, other.b.send, other.b.recv, &o);
    step(other.a.qp, &o, 0, IBV_QPS_RTS, IBV_QPS_RESET);
    walk(other.a.qp, &o, on_same_pd->qp_num, IBV_QPS_RTS);
    walk(on_same_pd, &o, other.a.qp->qp_num, IBV_QPS_RTS);
    say("write", "%s", write_by(&other, mw->rkey, at(&p.b, START), 8));
    ibv_destroy_qp(on_same_pd);
    pair_close(&other);
  }
  close_with(&p, mw);
}

const struct check mw_checks[] = {{"alloc", alloc}, {"inc_rkey", inc_rkey}, {"type_1", type_1},
                                  {"type_1_unbind", type_1_unbind}, {"type_1_errors", type_1_errors}, {"type_2", type_2},
                                  {"type_2_rebind", type_2_rebind}, {"type_2_remote_invalidate", type_2_remote_invalidate},
                                  {"limits", limits}, {"type_2_errors", type_2_errors}, {"invalidate_unbound", invalidate_unbound},
                                  {"other_qp", other_qp}, {0}};
