// Receive queues that are shared.
#include "check.h"

static struct ibv_srq *make_srq(struct ibv_pd *pd, uint32_t wr, uint32_t sge, uint32_t limit) {
  struct ibv_srq_init_attr init = {.attr = {.max_wr = wr, .max_sge = sge, .srq_limit = limit}};
  return ibv_create_srq(pd, &init);
}

static int post(struct ibv_srq *srq, const struct side *side, uint64_t id, size_t offset, uint32_t size) {
  struct ibv_sge sge = part_of(side, offset, size);
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  return ibv_post_srq_recv(srq, &wr, &bad);
}

static const char *try_create(uint32_t wr, uint32_t sge, uint32_t limit) {
  struct ibv_srq_init_attr init = {.attr = {.max_wr = wr, .max_sge = sge, .srq_limit = limit}};
  struct ibv_srq *srq;
  const char *answer = MADE(srq, ibv_create_srq(suite.pd, &init));
  if (!srq) return answer;
  bool enough = init.attr.max_wr >= wr && init.attr.max_sge >= sge;
  int failed = ibv_destroy_srq(srq);
  if (failed) return text("ok, destroy %s", rc(failed));
  return enough ? "ok" : "ok, less than asked for";
}

static void create(void) {
  const struct ibv_device_attr *a = &suite.attr;
  say("one", "%s", try_create(1, 1, 0));
  say("hundred", "%s", try_create(100, 2, 0));
  say("wr_zero", "%s", try_create(0, 1, 0));
  say("sge_zero", "%s", try_create(10, 0, 0));
  say("sge_max", "%s", try_create(10, a->max_srq_sge, 0));
  say("sge_above_max", "%s", try_create(10, a->max_srq_sge + 1, 0));
  say("wr_above_max", "%s", try_create(a->max_srq_wr + 1, 1, 0));
  say("wr_huge", "%s", try_create(UINT32_MAX, 1, 0));
  say("limit_ignored", "%s", try_create(10, 1, 1000));
}

static void query_modify(void) {
  struct ibv_srq *srq = make_srq(suite.pd, 20, 2, 0);
  struct ibv_srq_attr attr, set = {.srq_limit = 5};
  if (!srq) return say("setup", "%s", errno_name(errno));
  say("query", "%s", RC(ibv_query_srq(srq, &attr)));
  say("values", "wr %s sge %s limit %u", yes(attr.max_wr >= 20), yes(attr.max_sge >= 2), attr.srq_limit);
  uint32_t wr = attr.max_wr;
  say("limit", "%s", RC(ibv_modify_srq(srq, &set, IBV_SRQ_LIMIT)));
  ibv_query_srq(srq, &attr);
  say("limit_now", "%u", attr.srq_limit);
  set.srq_limit = wr + 1;
  say("limit_above_size", "%s", RC(ibv_modify_srq(srq, &set, IBV_SRQ_LIMIT)));
  set.srq_limit = 0;
  say("limit_off", "%s", RC(ibv_modify_srq(srq, &set, IBV_SRQ_LIMIT)));
  set.max_wr = 100;
  say("resize", "%s", RC(ibv_modify_srq(srq, &set, IBV_SRQ_MAX_WR)));
  ibv_query_srq(srq, &attr);
  say("resized", "%s", yes(attr.max_wr >= 100));
  set.max_wr = suite.attr.max_srq_wr + 1;
  say("resize_above_max", "%s", RC(ibv_modify_srq(srq, &set, IBV_SRQ_MAX_WR)));
  say("nothing", "%s", RC(ibv_modify_srq(srq, &set, 0)));
  say("unknown", "%s", RC(ibv_modify_srq(srq, &set, 1 << 5)));
  uint32_t number;
  say("number", "%s", RC(ibv_get_srq_num(srq, &number)));
  say("destroy", "%s", RC(ibv_destroy_srq(srq)));
}

static void full(void) {
  struct ibv_srq *srq = make_srq(suite.pd, 8, 1, 0);
  struct ibv_srq_attr attr;
  enum { MANY = 1024 };
  static struct ibv_recv_wr chain[MANY];
  struct ibv_recv_wr *bad = NULL;
  if (!srq || ibv_query_srq(srq, &attr) || attr.max_wr >= MANY) return say("setup", "%s", errno_name(errno));
  for (uint32_t i = 0; i <= attr.max_wr; i++) chain[i] = (struct ibv_recv_wr){.wr_id = i, .next = i < attr.max_wr ? &chain[i + 1] : NULL};
  say("post", "%s", RC(ibv_post_srq_recv(srq, chain, &bad)));
  say("bad_wr", "%s", bad == &chain[attr.max_wr] ? "first beyond" : bad ? "another" : "none");
  ibv_destroy_srq(srq);
  srq = make_srq(suite.pd, 8, 1, 0);
  if (!srq || ibv_query_srq(srq, &attr)) return say("setup", "%s", errno_name(errno));
  struct ibv_sge list[64] = {{0}};
  struct ibv_recv_wr wide = {.sg_list = list, .num_sge = attr.max_sge + 1};
  say("too_many_sge", "%s", RC(ibv_post_srq_recv(srq, &wide, &bad)));
  say("too_many_sge_bad_wr", "%s", yes(bad == &wide));
  ibv_destroy_srq(srq);
}

struct shared {
  struct ibv_pd *pd;
  struct ibv_srq *srq;
  struct pair p;
};

static bool shared_open(struct shared *s, enum ibv_qp_type type, uint8_t rnr_retry) {
  s->pd = ibv_alloc_pd(suite.ctx);
  s->srq = s->pd ? make_srq(s->pd, 16, 2, 0) : NULL;
  if (!s->srq) {
    say("setup", "%s", errno_name(errno));
    return false;
  }
  struct options o = defaults(type);
  o.srq = s->srq;
  o.rnr_retry = rnr_retry;
  return pair_open(&s->p, &o);
}

static void shared_close(struct shared *s) {
  pair_close(&s->p);
  ibv_destroy_srq(s->srq);
  ibv_dealloc_pd(s->pd);
}

static void messages(void) {
  struct shared s;
  if (!shared_open(&s, IBV_QPT_RC, 7)) return;
  for (int i = 1; i <= 3; i++) say(text("post_%d", i), "%s", RC(post(s.srq, &s.p.b, i, 1000 * i, 1000)));
  fill(s.p.a.buf, 500, 1);
  for (int i = 1; i <= 3; i++) post_send(&s.p.a, i, IBV_SEND_SIGNALED, 0, 100 * i);
  say("receives", "%s", completions(s.p.b.recv, 3, LONG));
  say("sends", "%s", completions(s.p.a.send, 3, LONG));
  say("data", "%s", filled(s.p.b.buf + 3000, 300, 1) ? "ok" : "wrong");
  errno = 0;
  say("post_to_qp", "%s", rc(post_recv(&s.p.b, 9, 0, 10)));
  post_send(&s.p.a, 4, IBV_SEND_SIGNALED, 0, 10);
  say("not_from_qp", "%s", completions(s.p.b.recv, 1, SHORT));
  say("qp_srq", "%s", yes(s.p.b.qp->srq == s.srq));
  say("destroy_used", "%s", RC(ibv_destroy_srq(s.srq)));
  shared_close(&s);
}

static void too_short(void) {
  struct shared s;
  if (!shared_open(&s, IBV_QPT_RC, 7)) return;
  post(s.srq, &s.p.b, 1, 0, 10);
  post(s.srq, &s.p.b, 2, 0, 100);
  post_send(&s.p.a, 3, IBV_SEND_SIGNALED, 0, 20);
  say("send", "%s", completions(s.p.a.send, 1, LONG));
  say("receive", "%s", completions(s.p.b.recv, 1, LONG));
  say("other_stays", "%s", completions(s.p.b.recv, 1, SHORT));
  shared_close(&s);
}

static void empty(void) {
  struct shared s;
  if (!shared_open(&s, IBV_QPT_RC, 0)) return;
  post_send(&s.p.a, 1, IBV_SEND_SIGNALED, 0, 20);
  say("send", "%s", completions(s.p.a.send, 1, LONG));
  say("states", "%s %s", state_name(state_of(s.p.a.qp)), state_name(state_of(s.p.b.qp)));
  shared_close(&s);
}

// Armed at 3 of 5: comes when fewer are left, and once only.
static void limit(void) {
  struct shared s;
  if (!shared_open(&s, IBV_QPT_RC, 7)) return;
  struct ibv_srq_attr set = {.srq_limit = 3};
  for (int i = 1; i <= 5; i++) post(s.srq, &s.p.b, i, 0, 100);
  drain_events(suite.ctx);
  say("arm", "%s", RC(ibv_modify_srq(s.srq, &set, IBV_SRQ_LIMIT)));
  for (int i = 1; i <= 4; i++) {
    post_send(&s.p.a, i, IBV_SEND_SIGNALED, 0, 10);
    completions(s.p.b.recv, 1, LONG);
    say(text("left_%d", 5 - i), "%s", next_event(suite.ctx, s.srq, SHORT));
  }
  struct ibv_srq_attr attr;
  ibv_query_srq(s.srq, &attr);
  say("limit_afterwards", "%u", attr.srq_limit);
  say("arm_above_left", "%s", RC(ibv_modify_srq(s.srq, &set, IBV_SRQ_LIMIT)));
  say("at_once", "%s", next_event(suite.ctx, s.srq, SHORT));
  shared_close(&s);
}

// A queue pair in ERR keeps its hands off the receives that nobody took, and says so by an event.
static void last_wqe(void) {
  struct shared s;
  if (!shared_open(&s, IBV_QPT_RC, 7)) return;
  for (int i = 1; i <= 3; i++) post(s.srq, &s.p.b, i, 0, 100);
  drain_events(suite.ctx);
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  say("to_err", "%s", RC(ibv_modify_qp(s.p.b.qp, &attr, IBV_QP_STATE)));
  say("event", "%s", next_event(suite.ctx, s.p.b.qp, 2000));
  say("no_flush", "%s", completions(s.p.b.recv, 1, SHORT));
  post_send(&s.p.b, 5, IBV_SEND_SIGNALED, 0, 10);
  say("sends_flushed", "%s", completions(s.p.b.send, 1, 3000));
  shared_close(&s);
}

// Two queue pairs on one shared queue: who comes first takes the first receive.
static void two_pairs(void) {
  struct shared s;
  if (!shared_open(&s, IBV_QPT_RC, 7)) return;
  struct pair other;
  if (!pair_open(&other, &s.p.o)) return shared_close(&s);
  for (int i = 1; i <= 4; i++) post(s.srq, &s.p.b, i, 0, 100);
  const char *all = "";
  for (int i = 1; i <= 4; i++) {
    struct pair *p = i % 2 ? &s.p : &other;
    post_send(&p->a, i, IBV_SEND_SIGNALED, 0, 10 * i);
    all = text("%s%s%s", all, i > 1 ? "; " : "", completions(p->b.recv, 1, LONG));
  }
  say(NULL, "%s", all);
  pair_close(&other);
  shared_close(&s);
}

static void datagrams(void) {
  struct shared s;
  if (!shared_open(&s, IBV_QPT_UD, 7)) return;
  struct ibv_ah_attr path = own_path();
  struct ibv_ah *ah = ibv_create_ah(s.pd, &path);
  post(s.srq, &s.p.b, 1, 0, 200);
  post_ud(&s.p.a, ah, s.p.b.qp->qp_num, QKEY, 2, IBV_SEND_SIGNALED, 0, 50);
  say(NULL, "%s", completions(s.p.b.recv, 1, 3000));
  ibv_destroy_ah(ah);
  shared_close(&s);
}

const struct check srq_checks[] = {{"create", create}, {"query_modify", query_modify}, {"full", full},
                                   {"messages", messages}, {"too_short", too_short}, {"empty", empty}, {"limit", limit},
                                   {"last_wqe", last_wqe}, {"two_pairs", two_pairs}, {"datagrams", datagrams}, {0}};
