// What goes wrong on reliable connections: the statuses of both sides, and the states afterwards.
#include "check.h"

// A failing operation of a, with a receive of b outstanding; then how everything ended.
static void outcome(const char *name, struct pair *p, struct ibv_send_wr *wr) {
  errno = 0;
  int failed = post_wr(p->a.qp, wr);
  if (failed) {
    say(name, "post %s; states %s %s", rc(failed), state_name(state_of(p->a.qp)), state_name(state_of(p->b.qp)));
    return;
  }
  const char *sent = completions(p->a.send, 1, LONG), *received = completions(p->b.recv, 1, SHORT);
  say(name, "%s; responder %s; states %s %s", sent, received, state_name(state_of(p->a.qp)), state_name(state_of(p->b.qp)));
}

struct change {
  const char *name;
  unsigned qp_access, mr_access; // of both sides
  int64_t address;               // what is added to the right address
  uint32_t key;                  // what the right key is changed by
  bool other_pd;                 // the target is a region of another protection domain
};

static const struct change changes[] = {
    {"right", REMOTE_ALL, ALL_ACCESS, 0, 0, false},
    {"bad_rkey_index", REMOTE_ALL, ALL_ACCESS, 0, 0x5a00, false},
    {"bad_rkey_low_byte", REMOTE_ALL, ALL_ACCESS, 0, 1, false},
    {"before_start", REMOTE_ALL, ALL_ACCESS, -1, 0, false},
    {"beyond_end", REMOTE_ALL, ALL_ACCESS, (1 << 16) - 99, 0, false},
    {"far_away", REMOTE_ALL, ALL_ACCESS, (int64_t)1 << 40, 0, false},
    {"no_access_in_mr", REMOTE_ALL, IBV_ACCESS_LOCAL_WRITE, 0, 0, false},
    {"no_access_in_qp", 0, ALL_ACCESS, 0, 0, false},
    {"other_pd", REMOTE_ALL, ALL_ACCESS, 0, 0, true}};

static void remote(enum ibv_wr_opcode opcode) {
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
    struct pair p;
    struct options o = defaults(IBV_QPT_RC);
    o.qp_access = changes[i].qp_access;
    o.mr_access = changes[i].mr_access;
    if (!pair_open(&p, &o)) return;
    struct ibv_mr *foreign = ibv_reg_mr(suite.pd, p.b.buf, 4096, ALL_ACCESS);
    struct ibv_sge sge = part_of(&p.a, 0, 100);
    uint32_t rkey = (changes[i].other_pd ? foreign : p.b.mr)->rkey ^ changes[i].key;
    struct ibv_send_wr wr = rdma_wr(&sge, opcode, 1, at(&p.b, 0) + changes[i].address, rkey);
    post_recv(&p.b, 7, 1000, 10);
    outcome(changes[i].name, &p, &wr);
    ibv_dereg_mr(foreign);
    pair_close(&p);
  }
}

static void write_target(void) { remote(IBV_WR_RDMA_WRITE); }
static void write_imm_target(void) { remote(IBV_WR_RDMA_WRITE_WITH_IMM); }
static void read_target(void) { remote(IBV_WR_RDMA_READ); }

// The local side of an operation: the gather or scatter entry is wrong.
static void local(const char *theme, enum ibv_wr_opcode opcode) {
  static const char *const names[] = {"bad_lkey", "beyond_end", "before_start", "other_pd", "read_only_mr", "zero_length_bad_lkey"};
  for (int i = 0; i < 6; i++) {
    struct pair p;
    struct options o = defaults(IBV_QPT_RC);
    if (!pair_open(&p, &o)) return;
    struct ibv_mr *foreign = ibv_reg_mr(suite.pd, p.a.buf, 4096, ALL_ACCESS), *fixed = ibv_reg_mr(p.pd, p.a.buf, 4096, 0);
    struct ibv_sge sge = part_of(&p.a, 0, 100);
    if (i == 0 || i == 5) sge.lkey ^= 0x5a00;
    if (i == 1) sge.addr = at(&p.a, (1 << 16) - 99);
    if (i == 2) sge.addr = at(&p.a, 0) - 1;
    if (i == 3) sge.lkey = foreign->lkey;
    if (i == 4) sge.lkey = fixed->lkey;
    if (i == 5) sge.length = 0;
    struct ibv_send_wr wr = rdma_wr(&sge, opcode, 1, at(&p.b, 0), p.b.mr->rkey);
    post_recv(&p.b, 7, 1000, 200);
    outcome(text("%s.%s", theme, names[i]), &p, &wr);
    ibv_dereg_mr(foreign);
    ibv_dereg_mr(fixed);
    pair_close(&p);
  }
}

static void local_entries(void) {
  local("send", IBV_WR_SEND);
  local("write", IBV_WR_RDMA_WRITE);
  local("read", IBV_WR_RDMA_READ);
}

// The receive's entry is wrong: that is found out when a message comes.
static void receive_entries(void) {
  static const char *const names[] = {"bad_lkey", "beyond_end", "other_pd", "read_only_mr", "deregistered", "second_bad"};
  for (int i = 0; i < 6; i++) {
    struct pair p;
    struct options o = defaults(IBV_QPT_RC);
    if (!pair_open(&p, &o)) return;
    struct ibv_mr *foreign = ibv_reg_mr(suite.pd, p.b.buf, 4096, ALL_ACCESS), *fixed = ibv_reg_mr(p.pd, p.b.buf, 4096, 0);
    struct ibv_mr *gone = ibv_reg_mr(p.pd, p.b.buf, 4096, ALL_ACCESS);
    struct ibv_sge list[2] = {part_of(&p.b, 0, 100), part_of(&p.b, 100, 100)};
    if (i == 0) list[0].lkey ^= 0x5a00;
    if (i == 1) list[0].addr = at(&p.b, (1 << 16) - 50);
    if (i == 2) list[0].lkey = foreign->lkey;
    if (i == 3) list[0].lkey = fixed->lkey;
    if (i == 4) list[0].lkey = gone->lkey;
    if (i == 5) list[1].lkey ^= 0x5a00;
    struct ibv_recv_wr receive = {.wr_id = 7, .sg_list = list, .num_sge = i == 5 ? 2 : 1}, *bad;
    errno = 0;
    int posted = ibv_post_recv(p.b.qp, &receive, &bad);
    ibv_dereg_mr(gone);
    struct ibv_sge sge = part_of(&p.a, 0, i == 5 ? 150 : 80);
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    if (posted) say(names[i], "post %s", rc(posted));
    else outcome(names[i], &p, &wr);
    ibv_dereg_mr(foreign);
    ibv_dereg_mr(fixed);
    pair_close(&p);
  }
}

static void receive_too_short(void) {
  static const uint32_t sizes[] = {101, 5000};
  for (int i = 0; i < 3; i++) {
    struct pair p;
    struct options o = defaults(IBV_QPT_RC);
    if (!pair_open(&p, &o)) return;
    struct ibv_sge sge = part_of(&p.a, 0, sizes[i % 2]);
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    post_recv(&p.b, 7, 0, i == 2 ? 0 : i ? 1500 : 100);
    outcome(i == 2 ? "nothing" : i ? "in_second_packet" : "one_byte", &p, &wr);
    pair_close(&p);
  }
}

static void rnr(void) {
  for (int retry = 0; retry < 3; retry++) {
    struct pair p;
    struct options o = defaults(IBV_QPT_RC);
    o.rnr_retry = retry;
    if (!pair_open(&p, &o)) return;
    struct ibv_sge sge = part_of(&p.a, 0, 100);
    struct ibv_send_wr send = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr write = rdma_wr(&sge, IBV_WR_RDMA_WRITE_WITH_IMM, 1, at(&p.b, 0), p.b.mr->rkey);
    outcome(retry == 2 ? "write_imm" : text("send_retry_%d", retry), &p, retry == 2 ? &write : &send);
    pair_close(&p);
  }
}

// Nobody answers.
static void retries(void) {
  static const char *const names[] = {"peer_destroyed", "peer_reset", "peer_in_init", "peer_in_error", "peer_knows_another"};
  for (int i = 0; i < 5; i++) {
    struct pair p;
    struct options o = defaults(IBV_QPT_RC);
    o.timeout = 8;
    o.retry = 1;
    if (!pair_open(&p, &o)) return;
    if (i == 1 || i == 2 || i == 4) step(p.b.qp, &o, 0, IBV_QPS_RTS, IBV_QPS_RESET);
    if (i == 2) step(p.b.qp, &o, 0, IBV_QPS_RESET, IBV_QPS_INIT);
    if (i == 3) step(p.b.qp, &o, 0, IBV_QPS_RTS, IBV_QPS_ERR);
    if (i == 4) walk(p.b.qp, &o, 0x123, IBV_QPS_RTS);
    if (i == 0) {
      ibv_destroy_qp(p.b.qp);
      p.b.qp = NULL;
    }
    int failed = post_send(&p.a, 1, IBV_SEND_SIGNALED, 0, 100);
    const char *sent = failed ? "-" : completions(p.a.send, 1, LONG);
    say(names[i], "post %s; %s; %s", rc(failed), sent, state_name(state_of(p.a.qp)));
    pair_close(&p);
  }
}

static void opcodes(void) {
  static const struct { const char *name; enum ibv_wr_opcode opcode; } all[] = {
      {"local_inv_nothing", IBV_WR_LOCAL_INV}, {"tso", IBV_WR_TSO}, {"driver1", IBV_WR_DRIVER1},
      {"atomic_write", IBV_WR_ATOMIC_WRITE}, {"14", 14}, {"99", 99}, {"send_with_inv_nothing", IBV_WR_SEND_WITH_INV}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    struct pair p;
    struct options o = defaults(IBV_QPT_RC);
    if (!pair_open(&p, &o)) return;
    struct ibv_sge sge = part_of(&p.a, 0, 8);
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = all[i].opcode,
                             .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = 0x5a5a00};
    post_recv(&p.b, 7, 0, 100);
    outcome(all[i].name, &p, &wr);
    pair_close(&p);
  }
}

// The chain's second request cannot be posted: the first is carried out, the third not.
static void chain(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_sge list[256];
  for (int i = 0; i < 256; i++) list[i] = part_of(&p.a, 0, 1);
  struct ibv_send_wr wrs[3], *bad = NULL;
  for (int i = 0; i < 3; i++)
    wrs[i] = (struct ibv_send_wr){.wr_id = i + 1, .next = i < 2 ? &wrs[i + 1] : NULL, .sg_list = list,
                                  .num_sge = i == 1 ? 200 : 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
  for (int i = 1; i <= 3; i++) post_recv(&p.b, i, 0, 10);
  say("post", "%s", RC(ibv_post_send(p.a.qp, wrs, &bad)));
  say("bad_wr", "%s", bad == &wrs[1] ? "second" : "another");
  say("sends", "%s", completions(p.a.send, 2, SHORT));
  say("receives", "%s", completions(p.b.recv, 2, SHORT));
  pair_close(&p);
}

// After a failure both sides are taken through RESET and work again.
static void recovery(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_sge sge = part_of(&p.a, 0, 100);
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE, 1, at(&p.b, 0), p.b.mr->rkey ^ 0x5a00);
  post_wr(p.a.qp, &wr);
  say("failure", "%s", completions(p.a.send, 1, LONG));
  say("reset", "%s %s", rc(step(p.a.qp, &o, 0, IBV_QPS_ERR, IBV_QPS_RESET)), rc(step(p.b.qp, &o, 0, IBV_QPS_ERR, IBV_QPS_RESET)));
  say("connect_a", "%s", rc(walk(p.a.qp, &o, p.b.qp->qp_num, IBV_QPS_RTS)));
  say("connect_b", "%s", rc(walk(p.b.qp, &o, p.a.qp->qp_num, IBV_QPS_RTS)));
  drain(p.b.recv);
  post_recv(&p.b, 7, 0, 100);
  post_send(&p.a, 8, IBV_SEND_SIGNALED, 0, 50);
  say("send", "%s", completions(p.a.send, 1, LONG));
  say("receive", "%s", completions(p.b.recv, 1, 3000));
  pair_close(&p);
}

const struct check errors_checks[] = {
    {"write_target", write_target}, {"write_imm_target", write_imm_target}, {"read_target", read_target},
    {"local", local_entries}, {"receive", receive_entries}, {"receive_too_short", receive_too_short}, {"rnr", rnr},
    {"retries", retries}, {"opcodes", opcodes}, {"chain", chain}, {"recovery", recovery}, {0}};
