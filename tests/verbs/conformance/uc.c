// Unreliable connections: no acknowledgements, no reads, no atomics; what does not fit is dropped.
#include "check.h"

static const char *got; // what completed, taken before what is to be seen afterwards

static void messages(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_UC);
  if (!pair_open(&p, &o)) return;
  static const uint32_t sizes[] = {0, 1, 1023, 1024, 1025, 3077, 20000};
  for (int i = 0; i < 7; i++) {
    fill(p.a.buf, sizes[i], i);
    post_recv(&p.b, 1, 0, 30000);
    post_send(&p.a, 2, IBV_SEND_SIGNALED, 0, sizes[i]);
    const char *sent = completions(p.a.send, 1, LONG);
    got = completions(p.b.recv, 1, 3000);
    say(text("%u", sizes[i]), "%s; %s; data %s", sent, got, filled(p.b.buf, sizes[i], i) ? "ok" : "wrong");
  }
  pair_close(&p);
}

static void writes(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_UC);
  if (!pair_open(&p, &o)) return;
  fill(p.a.buf, 5000, 3);
  struct ibv_sge sge = part_of(&p.a, 0, 5000);
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE, 1, at(&p.b, 100), p.b.mr->rkey);
  post_wr(p.a.qp, &wr);
  say("send", "%s", completions(p.a.send, 1, LONG));
  for (double end = now_ms() + 3000; now_ms() < end && !filled(p.b.buf + 100, 5000, 3);) pause_ms(1);
  say("data", "%s", filled(p.b.buf + 100, 5000, 3) ? "ok" : "wrong");
  wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE_WITH_IMM, 2, at(&p.b, 20000), p.b.mr->rkey);
  wr.imm_data = htonl(77);
  post_recv(&p.b, 3, 0, 0);
  post_wr(p.a.qp, &wr);
  say("send_imm", "%s", completions(p.a.send, 1, LONG));
  got = completions(p.b.recv, 1, 3000);
  say("receive_imm", "%s, data %s", got, filled(p.b.buf + 20000, 5000, 3) ? "ok" : "wrong");
  pair_close(&p);
}

// Nobody waits, the message is lost; the next one with a receive arrives.
static void no_receive(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_UC);
  if (!pair_open(&p, &o)) return;
  post_send(&p.a, 1, IBV_SEND_SIGNALED, 0, 10);
  say("send", "%s", completions(p.a.send, 1, LONG));
  pause_ms(100);
  post_recv(&p.b, 2, 0, 100);
  say("not_kept", "%s", completions(p.b.recv, 1, SHORT));
  post_send(&p.a, 3, IBV_SEND_SIGNALED, 0, 20);
  say("next_send", "%s", completions(p.a.send, 1, LONG));
  say("next_receive", "%s", completions(p.b.recv, 1, 3000));
  say("states", "%s %s", state_name(state_of(p.a.qp)), state_name(state_of(p.b.qp)));
  pair_close(&p);
}

static void receive_too_short(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_UC);
  if (!pair_open(&p, &o)) return;
  post_recv(&p.b, 2, 0, 100);
  post_send(&p.a, 1, IBV_SEND_SIGNALED, 0, 101);
  say("send", "%s", completions(p.a.send, 1, LONG));
  say("receive", "%s", completions(p.b.recv, 1, SHORT));
  say("states", "%s %s", state_name(state_of(p.a.qp)), state_name(state_of(p.b.qp)));
  pair_close(&p);
}

static void bad_rkey(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_UC);
  if (!pair_open(&p, &o)) return;
  struct ibv_sge sge = part_of(&p.a, 0, 10);
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE, 1, at(&p.b, 100), p.b.mr->rkey ^ 0x5a00);
  post_recv(&p.b, 2, 0, 100);
  post_wr(p.a.qp, &wr);
  say("send", "%s", completions(p.a.send, 1, LONG));
  say("receive", "%s", completions(p.b.recv, 1, SHORT));
  say("states", "%s %s", state_name(state_of(p.a.qp)), state_name(state_of(p.b.qp)));
  pair_close(&p);
}

static void not_for_uc(void) {
  static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};
  static const char *const names[] = {"read", "fetch_add", "cmp_swp"};
  for (int i = 0; i < 3; i++) {
    struct pair p;
    struct options o = defaults(IBV_QPT_UC);
    if (!pair_open(&p, &o)) return;
    struct ibv_sge sge = part_of(&p.a, 0, 8);
    struct ibv_send_wr wr = i ? atomic_wr(&sge, opcodes[i], 1, at(&p.b, 64), p.b.mr->rkey, 1, 1)
                              : rdma_wr(&sge, opcodes[i], 1, at(&p.b, 64), p.b.mr->rkey);
    int failed = post_wr(p.a.qp, &wr);
    const char *sent = failed ? "-" : completions(p.a.send, 1, 2000);
    say(names[i], "post %s; %s; %s", rc(failed), sent, state_name(state_of(p.a.qp)));
    pair_close(&p);
  }
}

// A local mistake: the send queue goes to SQE, what follows is flushed, receives go on.
static void send_error(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_UC);
  if (!pair_open(&p, &o)) return;
  struct ibv_sge sge = part_of(&p.a, 0, 8);
  sge.lkey ^= 0x5a00;
  struct ibv_send_wr good = {.wr_id = 2, .opcode = IBV_WR_SEND};
  struct ibv_send_wr bad = {.wr_id = 1, .next = &good, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
  say("post", "%s", RC(post_wr(p.a.qp, &bad)));
  say("sends", "%s", completions(p.a.send, 2, 2000));
  say("state", "%s", state_name(state_of(p.a.qp)));
  post_recv(&p.a, 3, 0, 10);
  say("receives_go_on", "%s", completions(p.a.recv, 1, SHORT));
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
  say("back_to_rts", "%s", RC(ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE)));
  pair_close(&p);
}

static void peer_gone(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_UC);
  if (!pair_open(&p, &o)) return;
  ibv_destroy_qp(p.b.qp);
  p.b.qp = NULL;
  post_send(&p.a, 1, IBV_SEND_SIGNALED, 0, 10);
  got = completions(p.a.send, 1, 3000);
  say(NULL, "%s, %s", got, state_name(state_of(p.a.qp)));
  pair_close(&p);
}

const struct check uc_checks[] = {{"messages", messages}, {"write", writes}, {"no_receive", no_receive},
                                  {"receive_too_short", receive_too_short}, {"bad_rkey", bad_rkey},
                                  {"not_for_uc", not_for_uc}, {"send_error", send_error}, {"peer_gone", peer_gone}, {0}};
