// What becomes of outstanding requests when a queue pair fails.
#include "check.h"

// The third of six sends fails. Those before succeed; those behind are flushed, signaled or not, in order.
static void after_failure(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_sge good = part_of(&p.a, 0, 10), bad_key = good;
  struct ibv_send_wr wrs[6];
  for (int i = 0; i < 6; i++)
    wrs[i] = (struct ibv_send_wr){.wr_id = i + 1, .next = i < 5 ? &wrs[i + 1] : NULL, .sg_list = &good, .num_sge = 1,
                                  .opcode = IBV_WR_SEND, .send_flags = i % 2 ? IBV_SEND_SIGNALED : 0};
  bad_key.lkey ^= 0x5a00;
  wrs[2].sg_list = &bad_key;
  for (int i = 1; i <= 6; i++) post_recv(&p.b, i, 0, 100);
  for (int i = 11; i <= 13; i++) post_recv(&p.a, i, 0, 100);
  say("post", "%s", RC(post_wr(p.a.qp, wrs)));
  say("sends", "%s", completions(p.a.send, 5, LONG));
  say("no_more_sends", "%s", completions(p.a.send, 1, SHORT));
  say("own_receives", "%s", completions(p.a.recv, 3, 3000));
  say("peer_receives", "%s", completions(p.b.recv, 2, LONG));
  say("peer_keeps_the_rest", "%s", completions(p.b.recv, 1, SHORT));
  say("states", "%s %s", state_name(state_of(p.a.qp)), state_name(state_of(p.b.qp)));
  pair_close(&p);
}

// The peer refuses the second of four: what is flushed on both sides.
static void after_refusal(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_sge sge = part_of(&p.a, 0, 10);
  struct ibv_send_wr wrs[4];
  for (int i = 0; i < 4; i++) {
    wrs[i] = rdma_wr(&sge, IBV_WR_RDMA_WRITE, i + 1, at(&p.b, 0), p.b.mr->rkey ^ (i == 1 ? 0x5a00 : 0));
    wrs[i].next = i < 3 ? &wrs[i + 1] : NULL;
  }
  for (int i = 11; i <= 13; i++) post_recv(&p.a, i, 0, 100);
  for (int i = 21; i <= 23; i++) post_recv(&p.b, i, 0, 100);
  post_wr(p.a.qp, wrs);
  say("sends", "%s", completions(p.a.send, 4, LONG));
  say("receives", "%s", completions(p.a.recv, 3, 3000));
  say("peer_receives", "%s", completions(p.b.recv, 3, 3000));
  pair_close(&p);
}

static void by_modify(enum ibv_qp_type type) {
  struct pair p;
  struct options o = defaults(type);
  if (!pair_open(&p, &o)) return;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  struct ibv_wc wc;
  for (int i = 11; i <= 15; i++) post_recv(&p.a, i, 0, 100);
  say(text("%s.modify", type_name(type)), "%s", RC(ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE)));
  say(text("%s.receives", type_name(type)), "%s", completions(p.a.recv, 5, 3000));
  // Whatever is posted in ERR is flushed at once.
  say(text("%s.post_receive", type_name(type)), "%s", RC(post_recv(&p.a, 16, 0, 100)));
  say(text("%s.later_receive", type_name(type)), "%s", completions(p.a.recv, 1, 1000));
  if (type != IBV_QPT_UD) {
    say(text("%s.post_send", type_name(type)), "%s", RC(post_send(&p.a, 17, 0, 0, 10)));
    if (next_wc(p.a.send, &wc, 3000))
      say(text("%s.later_send", type_name(type)), "%s qp=%s", describe(&wc), wc.qp_num == p.a.qp->qp_num ? "same" : "different");
    else
      say(text("%s.later_send", type_name(type)), "nothing");
  }
  say(text("%s.state", type_name(type)), "%s", state_name(state_of(p.a.qp)));
  pair_close(&p);
}

static void error_state(void) {
  by_modify(IBV_QPT_RC);
  by_modify(IBV_QPT_UC);
  by_modify(IBV_QPT_UD);
}

// Sends wait for a receive of the peer (or its return) when the state is changed.
static void waiting_sends(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  for (int i = 1; i <= 4; i++) post_send(&p.a, i, i == 4 ? IBV_SEND_SIGNALED : 0, 0, 10);
  say("before", "%s", completions(p.a.send, 1, SHORT));
  say("modify", "%s", RC(ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE)));
  say("sends", "%s", completions(p.a.send, 4, 5000));
  pair_close(&p);
}

// RESET forgets all, without completions.
static void reset(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  for (int i = 11; i <= 13; i++) post_recv(&p.a, i, 0, 100);
  for (int i = 1; i <= 2; i++) post_send(&p.a, i, IBV_SEND_SIGNALED, 0, 10);
  say("modify", "%s", rc(step(p.a.qp, &o, 0, IBV_QPS_RTS, IBV_QPS_RESET)));
  say("receives", "%s", completions(p.a.recv, 1, SHORT));
  say("sends", "%s", completions(p.a.send, 1, SHORT));
  pair_close(&p);
}

// The queue pair is destroyed: nothing of it comes any more.
static void destroyed(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  for (int i = 11; i <= 13; i++) post_recv(&p.a, i, 0, 100);
  say("destroy", "%s", RC(ibv_destroy_qp(p.a.qp)));
  p.a.qp = NULL;
  say("receives", "%s", completions(p.a.recv, 1, SHORT));
  pair_close(&p);
}

const struct check flush_checks[] = {{"after_failure", after_failure}, {"after_refusal", after_refusal},
                                     {"error_state", error_state}, {"waiting_sends", waiting_sends}, {"reset", reset},
                                     {"destroyed", destroyed}, {0}};
