// RDMA writes and reads.
#include "check.h"

static const char *got; // what completed, taken before what is to be seen afterwards

enum { FAR = 1 << 21 }; // where in the buffers the other half is

static void one(struct pair *p, const char *name, enum ibv_wr_opcode opcode, uint32_t size) {
  bool read = opcode == IBV_WR_RDMA_READ;
  struct side *from = read ? &p->b : &p->a, *to = read ? &p->a : &p->b;
  fill(from->buf, size, size);
  memset(to->buf + FAR - 64, 0xaa, size + 128);
  struct ibv_sge sge = part_of(&p->a, read ? FAR : 0, size);
  struct ibv_send_wr wr = rdma_wr(&sge, opcode, 2, at(&p->b, read ? 0 : FAR), p->b.mr->rkey);
  wr.imm_data = htonl(0xcafe0001);
  if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) post_recv(&p->b, 1, 0, 0);
  int failed = post_wr(p->a.qp, &wr);
  if (failed) return say(name, "post %s", rc(failed));
  const char *sent = completions(p->a.send, 1, LONG);
  if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) sent = text("%s; %s", sent, completions(p->b.recv, 1, LONG));
  bool around = all_bytes(to->buf + FAR - 64, 64, 0xaa) && all_bytes(to->buf + FAR + size, 64, 0xaa);
  say(name, "%s; data %s; around %s", sent, filled(to->buf + FAR, size, size) ? "ok" : "wrong", around ? "untouched" : "written");
}

static void sizes(enum ibv_wr_opcode opcode) {
  static const enum ibv_mtu mtus[] = {IBV_MTU_256, IBV_MTU_1024, IBV_MTU_4096};
  for (int i = 0; i < 3; i++) {
    struct pair p;
    struct options o = defaults(IBV_QPT_RC);
    uint32_t m = 128u << mtus[i];
    o.mtu = mtus[i];
    o.size = 2 * FAR;
    if (!pair_open(&p, &o)) return;
    one(&p, text("mtu%u.0", m), opcode, 0);
    one(&p, text("mtu%u.1", m), opcode, 1);
    one(&p, text("mtu%u.mtu-1", m), opcode, m - 1);
    one(&p, text("mtu%u.mtu", m), opcode, m);
    one(&p, text("mtu%u.mtu+1", m), opcode, m + 1);
    one(&p, text("mtu%u.3mtu+5", m), opcode, 3 * m + 5);
    one(&p, text("mtu%u.1MiB", m), opcode, 1 << 20);
    pair_close(&p);
  }
}

static void write_sizes(void) { sizes(IBV_WR_RDMA_WRITE); }
static void read_sizes(void) { sizes(IBV_WR_RDMA_READ); }
static void write_imm_sizes(void) { sizes(IBV_WR_RDMA_WRITE_WITH_IMM); }

// A length of nothing needs no valid key or address.
static void nothing_anywhere(void) {
  static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
  for (int i = 0; i < 2; i++) {
    struct pair p;
    struct options o = defaults(IBV_QPT_RC);
    if (!pair_open(&p, &o)) return;
    struct ibv_send_wr wr = rdma_wr(NULL, opcodes[i], 1, 0x1000, 0);
    wr.num_sge = 0;
    say(i ? "read_post" : "write_post", "%s", RC(post_wr(p.a.qp, &wr)));
    say(i ? "read" : "write", "%s", completions(p.a.send, 1, LONG));
    pair_close(&p);
  }
}

// Write with immediate data uses a receive up but not its buffer.
static void immediate_fields(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  memset(p.b.buf, 0xaa, 3000);
  fill(p.a.buf, 1500, 1);
  post_recv(&p.b, 1, 0, 3000);
  struct ibv_sge sge = part_of(&p.a, 0, 1500);
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE_WITH_IMM, 2, at(&p.b, 5000), p.b.mr->rkey);
  wr.imm_data = htonl(0x01020304);
  post_wr(p.a.qp, &wr);
  say("send", "%s", completions(p.a.send, 1, LONG));
  struct ibv_wc wc;
  if (next_wc(p.b.recv, &wc, LONG)) {
    say("receive", "%s", describe(&wc));
    say("qp", "%s", wc.qp_num == p.b.qp->qp_num ? "same" : "different");
  }
  say("buffer", "%s", all_bytes(p.b.buf, 3000, 0xaa) ? "untouched" : "written");
  say("data", "%s", filled(p.b.buf + 5000, 1500, 1) ? "ok" : "wrong");
  pair_close(&p);
}

static void inline_write(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  uint8_t local[48];
  fill(local, 48, 8);
  struct ibv_sge sge = {.addr = (uintptr_t)local, .length = 48};
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE, 2, at(&p.b, 100), p.b.mr->rkey);
  wr.send_flags |= IBV_SEND_INLINE;
  say("post", "%s", RC(post_wr(p.a.qp, &wr)));
  memset(local, 0, 48);
  got = completions(p.a.send, 1, LONG);
  say("send", "%s, data %s", got, filled(p.b.buf + 100, 48, 8) ? "ok" : "wrong");
  wr = rdma_wr(&sge, IBV_WR_RDMA_READ, 3, at(&p.b, 100), p.b.mr->rkey);
  wr.send_flags |= IBV_SEND_INLINE;
  say("read", "%s", RC(post_wr(p.a.qp, &wr)));
  pair_close(&p);
}

static void gather_scatter(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  fill(p.a.buf, 3000, 4);
  struct ibv_sge three[3] = {part_of(&p.a, 0, 1), part_of(&p.a, 1, 1999), part_of(&p.a, 2000, 1000)};
  struct ibv_send_wr write = rdma_wr(three, IBV_WR_RDMA_WRITE, 1, at(&p.b, 100), p.b.mr->rkey);
  write.num_sge = 3;
  post_wr(p.a.qp, &write);
  got = completions(p.a.send, 1, LONG);
  say("write", "%s, data %s", got, filled(p.b.buf + 100, 3000, 4) ? "ok" : "wrong");
  struct ibv_sge two[2] = {part_of(&p.a, 20000, 7), part_of(&p.a, 20007, 2993)};
  struct ibv_send_wr read = rdma_wr(two, IBV_WR_RDMA_READ, 2, at(&p.b, 100), p.b.mr->rkey);
  read.num_sge = 2;
  post_wr(p.a.qp, &read);
  got = completions(p.a.send, 1, LONG);
  say("read", "%s, data %s", got, filled(p.a.buf + 20000, 3000, 4) ? "ok" : "wrong");
  pair_close(&p);
}

static void read_fields(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_sge sge = part_of(&p.a, 0, 777);
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_READ, 1, at(&p.b, 0), p.b.mr->rkey);
  struct ibv_wc wc;
  post_wr(p.a.qp, &wr);
  if (next_wc(p.a.send, &wc, LONG)) say(NULL, "%s len=%u qp=%s", describe(&wc), wc.byte_len, wc.qp_num == p.a.qp->qp_num ? "same" : "different");
  pair_close(&p);
}

// More reads at once than may be outstanding: they wait for each other, in order.
static void many_reads(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  o.rd_atomic = 1;
  if (!pair_open(&p, &o)) return;
  fill(p.b.buf, 12 * 2000, 6);
  for (int i = 0; i < 12; i++) {
    struct ibv_sge sge = part_of(&p.a, i * 2000, 2000);
    struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_READ, i, at(&p.b, i * 2000), p.b.mr->rkey);
    post_wr(p.a.qp, &wr);
  }
  say("completions", "%s", completions(p.a.send, 12, LONG));
  say("data", "%s", filled(p.a.buf, 12 * 2000, 6) ? "ok" : "wrong");
  pair_close(&p);
}

static void no_reads_allowed(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  o.rd_atomic = 0;
  if (!pair_open(&p, &o)) return;
  struct ibv_sge sge = part_of(&p.a, 0, 8);
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_READ, 1, at(&p.b, 0), p.b.mr->rkey);
  say("post", "%s", RC(post_wr(p.a.qp, &wr)));
  say("read", "%s", completions(p.a.send, 1, 2000));
  pair_close(&p);
}

// A write, a read of the same place, a send: each sees what was before it.
static void order(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  fill(p.a.buf, 4000, 7);
  post_recv(&p.b, 9, 30000, 10);
  struct ibv_sge out = part_of(&p.a, 0, 4000), in = part_of(&p.a, 10000, 4000);
  struct ibv_send_wr write = rdma_wr(&out, IBV_WR_RDMA_WRITE, 1, at(&p.b, 0), p.b.mr->rkey);
  struct ibv_send_wr read = rdma_wr(&in, IBV_WR_RDMA_READ, 2, at(&p.b, 0), p.b.mr->rkey);
  write.next = &read;
  say("post", "%s", RC(post_wr(p.a.qp, &write)));
  post_send(&p.a, 3, IBV_SEND_SIGNALED, 0, 10);
  got = completions(p.b.recv, 1, LONG);
  say("receive", "%s, written %s", got, filled(p.b.buf, 4000, 7) ? "before" : "not yet");
  say("completions", "%s", completions(p.a.send, 3, LONG));
  say("read", "%s", filled(p.a.buf + 10000, 4000, 7) ? "ok" : "wrong");
  pair_close(&p);
}

// A region with a virtual address of its own.
static void iova(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_mr *mr = ibv_reg_mr_iova(p.pd, p.b.buf, 8192, 0x7000, ALL_ACCESS);
  if (!mr) {
    say("setup", "%s", errno_name(errno));
    pair_close(&p);
    return;
  }
  fill(p.a.buf, 3000, 1);
  struct ibv_sge sge = part_of(&p.a, 0, 3000);
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE, 1, 0x7000 + 100, mr->rkey);
  post_wr(p.a.qp, &wr);
  got = completions(p.a.send, 1, LONG);
  say("write", "%s, data %s", got, filled(p.b.buf + 100, 3000, 1) ? "ok" : "wrong");
  sge = (struct ibv_sge){.addr = 0x7000 + 100, .length = 3000, .lkey = mr->lkey};
  wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE, 2, at(&p.a, 20000), p.a.mr->rkey);
  post_wr(p.b.qp, &wr);
  got = completions(p.b.send, 1, LONG);
  say("as_source", "%s, data %s", got, filled(p.a.buf + 20000, 3000, 1) ? "ok" : "wrong");
  ibv_dereg_mr(mr);
  pair_close(&p);
}

const struct check rdma_checks[] = {{"write", write_sizes}, {"read", read_sizes}, {"write_imm", write_imm_sizes},
                                    {"nothing", nothing_anywhere}, {"immediate", immediate_fields},
                                    {"inline", inline_write}, {"gather_scatter", gather_scatter},
                                    {"read_fields", read_fields}, {"many_reads", many_reads},
                                    {"no_reads_allowed", no_reads_allowed}, {"order", order}, {"iova", iova}, {0}};
