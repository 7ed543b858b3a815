// The state machine: every transition, with the attributes it needs, without each of them, and with each other one;
// and what posting does in every state.
#include "check.h"

static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
enum { STATES = IBV_QPS_ERR + 1 };

static const struct { const char *name; int bit; } attributes[] = {
    {"CUR_STATE", IBV_QP_CUR_STATE}, {"EN_SQD_ASYNC_NOTIFY", IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {"ACCESS_FLAGS", IBV_QP_ACCESS_FLAGS}, {"PKEY_INDEX", IBV_QP_PKEY_INDEX}, {"PORT", IBV_QP_PORT},
    {"QKEY", IBV_QP_QKEY}, {"AV", IBV_QP_AV}, {"PATH_MTU", IBV_QP_PATH_MTU}, {"TIMEOUT", IBV_QP_TIMEOUT},
    {"RETRY_CNT", IBV_QP_RETRY_CNT}, {"RNR_RETRY", IBV_QP_RNR_RETRY}, {"RQ_PSN", IBV_QP_RQ_PSN},
    {"MAX_QP_RD_ATOMIC", IBV_QP_MAX_QP_RD_ATOMIC}, {"ALT_PATH", IBV_QP_ALT_PATH},
    {"MIN_RNR_TIMER", IBV_QP_MIN_RNR_TIMER}, {"SQ_PSN", IBV_QP_SQ_PSN},
    {"MAX_DEST_RD_ATOMIC", IBV_QP_MAX_DEST_RD_ATOMIC}, {"PATH_MIG_STATE", IBV_QP_PATH_MIG_STATE},
    {"CAP", IBV_QP_CAP}, {"DEST_QPN", IBV_QP_DEST_QPN}, {"RATE_LIMIT", IBV_QP_RATE_LIMIT}};
enum { ATTRIBUTES = sizeof attributes / sizeof *attributes };

static struct ibv_cq *cq;

// A transition on a fresh queue pair: the answer, and the state afterwards unless it is the expected one.
static const char *transition(const struct options *o, enum ibv_qp_state from, enum ibv_qp_state to, int mask) {
  struct ibv_qp *qp = make_qp(suite.pd, cq, cq, o);
  if (!qp) return text("setup: %s", errno_name(errno));
  const char *answer;
  int failed = walk(qp, o, qp->qp_num, from);
  if (failed) answer = "unreachable";
  else {
    struct ibv_qp_attr attr = full_attr(o, qp->qp_num);
    attr.qp_state = to;
    attr.cur_qp_state = from;
    attr.en_sqd_async_notify = 1;
    answer = RC(ibv_modify_qp(qp, &attr, mask));
    enum ibv_qp_state after = state_of(qp);
    if (after != (strcmp(answer, "ok") ? from : to)) answer = text("%s, then %s", answer, state_name(after));
    if (!strcmp(answer, "ok") && qp->state != to) answer = text("ok, struct says %s", state_name(qp->state));
  }
  ibv_destroy_qp(qp);
  struct ibv_wc wc;
  while (ibv_poll_cq(cq, 1, &wc) > 0) {
  }
  return answer;
}

static bool have_cq(void) {
  cq = ibv_create_cq(suite.ctx, 64, NULL, NULL, 0);
  if (!cq) say("setup", "%s", errno_name(errno));
  return cq;
}

static char *arrow(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to) {
  return text("%s.%s>%s", type_name(type), state_name(from), state_name(to));
}

static void transitions(void) {
  if (!have_cq()) return;
  for (int t = 0; t < 3; t++) {
    struct options o = defaults(types[t]);
    for (int from = 0; from < STATES; from++)
      for (int to = 0; to < STATES; to++) {
        int mask = required(types[t], from, to);
        say(arrow(types[t], from, to), "%s", transition(&o, from, to, IBV_QP_STATE | (mask < 0 ? 0 : mask)));
      }
  }
  ibv_destroy_cq(cq);
}

// Of the transitions everybody may make; from SQE the same goes as from SQD.
static bool one_of_interest(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to) {
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return from == IBV_QPS_RTS;
  return from != IBV_QPS_SQE && required(type, from, to) >= 0;
}

static void each_attribute(bool missing) {
  if (!have_cq()) return;
  for (int t = 0; t < 3; t++) {
    struct options o = defaults(types[t]);
    for (int from = 0; from < STATES; from++)
      for (int to = 0; to < STATES; to++) {
        if (!one_of_interest(types[t], from, to)) continue;
        int needed = required(types[t], from, to);
        for (int i = 0; i < ATTRIBUTES; i++) {
          int bit = attributes[i].bit;
          if (!(needed & bit) == missing) continue;
          say(text("%s.%s", arrow(types[t], from, to), attributes[i].name), "%s",
              transition(&o, from, to, IBV_QP_STATE | (needed ^ bit)));
        }
      }
  }
  ibv_destroy_cq(cq);
}

static void missing(void) { each_attribute(true); }
static void superfluous(void) { each_attribute(false); }

// From RESET to RTS and back, and once more: a queue pair starts anew.
static void again(void) {
  if (!have_cq()) return;
  for (int t = 0; t < 3; t++) {
    struct options o = defaults(types[t]);
    struct ibv_qp *qp = make_qp(suite.pd, cq, cq, &o);
    if (!qp) return say("setup", "%s", errno_name(errno));
    const char *all = "";
    for (int i = 0; i < 3; i++) {
      all = text("%s%s%s", all, i ? " " : "", rc(walk(qp, &o, qp->qp_num, IBV_QPS_RTS)));
      all = text("%s %s", all, rc(step(qp, &o, 0, IBV_QPS_RTS, i ? IBV_QPS_RESET : IBV_QPS_ERR)));
      if (!i) all = text("%s %s", all, rc(step(qp, &o, 0, IBV_QPS_ERR, IBV_QPS_RESET)));
    }
    say(type_name(types[t]), "%s", all);
    ibv_destroy_qp(qp);
  }
  ibv_destroy_cq(cq);
}

// What a query says in each state of what has been set until then.
static void query(void) {
  if (!have_cq()) return;
  for (int t = 0; t < 3; t++) {
    struct options o = defaults(types[t]);
    struct ibv_qp *qp = make_qp(suite.pd, cq, cq, &o);
    if (!qp) return say("setup", "%s", errno_name(errno));
    for (enum ibv_qp_state state = IBV_QPS_RESET; state <= IBV_QPS_SQD; state++) {
      struct ibv_qp_attr a;
      struct ibv_qp_init_attr init;
      if (state != IBV_QPS_RESET) step(qp, &o, qp->qp_num, state - 1, state);
      const char *answer = RC(ibv_query_qp(qp, &a, 0x1fffff, &init)), *name = text("%s.%s", type_name(types[t]), state_name(state));
      const char *line = text("%s, %s", answer, state_name(a.qp_state));
      if (state >= IBV_QPS_INIT)
        line = types[t] == IBV_QPT_UD ? text("%s qkey=%s", line, yes(a.qkey == QKEY))
                                      : text("%s access=0x%x", line, a.qp_access_flags);
      if (state >= IBV_QPS_INIT) line = text("%s port=%s pkey=%d", line, yes(a.port_num == suite.port), a.pkey_index);
      if (state >= IBV_QPS_RTR && types[t] != IBV_QPT_UD)
        line = text("%s mtu=%d dest=%s rq_psn=0x%x", line, a.path_mtu, yes(a.dest_qp_num == qp->qp_num), a.rq_psn);
      if (state >= IBV_QPS_RTS) line = text("%s sq_psn=0x%x", line, a.sq_psn);
      say(name, "%s", line);
    }
    ibv_destroy_qp(qp);
  }
  ibv_destroy_cq(cq);
}

// Posts a send, then a receive, in every state; then what they complete with in a while.
static void post_in(enum ibv_qp_type type, enum ibv_qp_state state) {
  struct options o = defaults(type);
  struct side side = {.buf = make_buffer(4096), .send = ibv_create_cq(suite.ctx, 32, NULL, NULL, 0)};
  side.recv = ibv_create_cq(suite.ctx, 32, NULL, NULL, 0);
  side.mr = ibv_reg_mr(suite.pd, side.buf, 4096, ALL_ACCESS);
  side.qp = side.send && side.recv ? make_qp(suite.pd, side.send, side.recv, &o) : NULL;
  if (!side.mr || !side.qp) return say("setup", "%s", errno_name(errno));
  struct ibv_ah_attr path = own_path();
  struct ibv_ah *ah = ibv_create_ah(suite.pd, &path);
  const char *name = text("%s.%s", type_name(type), state_name(state));
  // A connected queue pair is connected with itself.
  if (walk(side.qp, &o, side.qp->qp_num, state)) say(name, "unreachable");
  else {
    drain(side.send);
    errno = 0;
    const char *receive = rc(post_recv(&side, 1, 0, 1000));
    errno = 0;
    const char *send = rc(type == IBV_QPT_UD ? post_ud(&side, ah, side.qp->qp_num, QKEY, 2, IBV_SEND_SIGNALED, 2000, 10)
                                             : post_send(&side, 2, IBV_SEND_SIGNALED, 2000, 10));
    const char *sent = completions(side.send, 1, SHORT), *received = completions(side.recv, 1, SHORT);
    say(name, "receive %s, %s; send %s, %s; then %s", receive, received, send, sent, state_name(state_of(side.qp)));
  }
  ibv_destroy_qp(side.qp);
  if (ah) ibv_destroy_ah(ah);
  ibv_destroy_cq(side.send);
  ibv_destroy_cq(side.recv);
  ibv_dereg_mr(side.mr);
  free_buffer(side.buf, 4096);
}

static void posting(void) {
  for (int t = 0; t < 3; t++)
    for (int state = 0; state < STATES; state++) post_in(types[t], state);
}

// Receives posted in INIT wait for the first message; reset forgets them.
static void receive_in_init(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  say("reset", "%s", rc(step(p.b.qp, &o, 0, IBV_QPS_RTS, IBV_QPS_RESET)));
  walk(p.b.qp, &o, p.a.qp->qp_num, IBV_QPS_INIT);
  say("post", "%s", RC(post_recv(&p.b, 7, 0, 100)));
  step(p.b.qp, &o, p.a.qp->qp_num, IBV_QPS_INIT, IBV_QPS_RTR);
  post_send(&p.a, 1, IBV_SEND_SIGNALED, 0, 10);
  say("send", "%s", completions(p.a.send, 1, LONG));
  say("receive_in_rtr", "%s", completions(p.b.recv, 1, LONG));
  post_recv(&p.b, 8, 0, 100);
  step(p.b.qp, &o, 0, IBV_QPS_RTR, IBV_QPS_RESET);
  say("nothing_after_reset", "%s", completions(p.b.recv, 1, SHORT));
  pair_close(&p);
}

// In SQD what is posted waits; back in RTS it goes.
static void sqd(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
  drain_events(suite.ctx);
  post_recv(&p.b, 1, 0, 100);
  say("to_sqd", "%s", RC(ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY)));
  say("event", "%s", next_event(suite.ctx, p.a.qp, 1000));
  struct ibv_qp_init_attr init;
  say("query", "%s", RC(ibv_query_qp(p.a.qp, &attr, IBV_QP_STATE, &init)));
  say("draining", "%s %d", state_name(attr.qp_state), attr.sq_draining);
  say("post", "%s", RC(post_send(&p.a, 2, IBV_SEND_SIGNALED, 0, 10)));
  say("waits", "%s", completions(p.a.send, 1, SHORT));
  say("back", "%s", rc(step(p.a.qp, &o, 0, IBV_QPS_SQD, IBV_QPS_RTS)));
  say("send", "%s", completions(p.a.send, 1, 3000));
  say("receive", "%s", completions(p.b.recv, 1, 3000));
  pair_close(&p);
}

const struct check qp_state_checks[] = {{"transitions", transitions}, {"missing", missing},
                                        {"superfluous", superfluous}, {"again", again}, {"query", query},
                                        {"posting", posting},
                                        {"receive_in_init", receive_in_init}, {"sqd", sqd}, {0}};
