// Sends and receives over RC.
#include "check.h"

static const char *got; // what completed, taken before what is to be seen afterwards

static const char *data_of(const struct pair *p, size_t to, size_t size, unsigned seed) {
  return filled(p->b.buf + to, size, seed) ? "data ok" : "data wrong";
}

// One message of a size, and nothing beyond it touched.
static void one_size(struct pair *p, const char *name, uint32_t size) {
  fill(p->a.buf, size, size);
  memset(p->b.buf, 0xaa, size + 64);
  int failed = post_recv(&p->b, 1, 0, size + 32);
  if (!failed) failed = post_send(&p->a, 2, IBV_SEND_SIGNALED, 0, size);
  if (failed) return say(name, "post %s", rc(failed));
  const char *sent = completions(p->a.send, 1, LONG), *received = completions(p->b.recv, 1, LONG);
  say(name, "%s; %s; %s; beyond %s", sent, received, data_of(p, 0, size, size), all_bytes(p->b.buf + size, 64, 0xaa) ? "untouched" : "written");
}

static void sizes_at(enum ibv_mtu mtu) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  uint32_t m = 128u << mtu;
  o.mtu = mtu;
  o.size = (1 << 20) + 4096;
  if (!pair_open(&p, &o)) return;
  one_size(&p, text("mtu%u.0", m), 0);
  one_size(&p, text("mtu%u.1", m), 1);
  one_size(&p, text("mtu%u.mtu-1", m), m - 1);
  one_size(&p, text("mtu%u.mtu", m), m);
  one_size(&p, text("mtu%u.mtu+1", m), m + 1);
  one_size(&p, text("mtu%u.3mtu+5", m), 3 * m + 5);
  one_size(&p, text("mtu%u.1MiB", m), 1 << 20);
  pair_close(&p);
}

static void sizes(void) {
  sizes_at(IBV_MTU_256);
  sizes_at(IBV_MTU_1024);
  sizes_at(IBV_MTU_4096);
}

// More than the port's largest message.
static void too_long(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  uint64_t size = (uint64_t)suite.port_attr.max_msg_sz + 4096;
  if (size > 1 << 28) return say(NULL, "too large to try");
  o.size = size;
  if (!pair_open(&p, &o)) return;
  post_recv(&p.b, 1, 0, o.size);
  int failed = post_send(&p.a, 2, IBV_SEND_SIGNALED, 0, suite.port_attr.max_msg_sz + 1);
  say("post", "%s", rc(failed));
  say("send", "%s", completions(p.a.send, 1, failed ? SHORT : LONG));
  pair_close(&p);
}

static void immediate(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  for (int i = 0; i < 2; i++) {
    struct ibv_sge sge = part_of(&p.a, 0, 100);
    struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = !i, .opcode = IBV_WR_SEND_WITH_IMM,
                             .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0x11223344)};
    post_recv(&p.b, 1, 0, 100);
    say(i ? "empty_post" : "post", "%s", RC(post_wr(p.a.qp, &wr)));
    say(i ? "empty_send" : "send", "%s", completions(p.a.send, 1, LONG));
    say(i ? "empty_receive" : "receive", "%s", completions(p.b.recv, 1, LONG));
  }
  pair_close(&p);
}

// Inline data need no memory region, and are taken when the request is posted.
static void inline_data(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  uint8_t local[64];
  fill(local, 64, 5);
  struct ibv_sge two[2] = {{.addr = (uintptr_t)local, .length = 40}, {.addr = (uintptr_t)local + 40, .length = 24}};
  struct ibv_send_wr wr = {.wr_id = 2, .sg_list = two, .num_sge = 2, .opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE};
  post_recv(&p.b, 1, 0, 100);
  say("post", "%s", RC(post_wr(p.a.qp, &wr)));
  memset(local, 0, sizeof local);
  say("send", "%s", completions(p.a.send, 1, LONG));
  got = completions(p.b.recv, 1, LONG);
  say("receive", "%s, %s", got, data_of(&p, 0, 64, 5));
  struct ibv_sge long_one = part_of(&p.a, 0, 60000);
  wr.sg_list = &long_one;
  wr.num_sge = 1;
  say("too_long", "%s", RC(post_wr(p.a.qp, &wr)));
  wr.num_sge = 0;
  post_recv(&p.b, 3, 0, 100);
  say("empty", "%s", RC(post_wr(p.a.qp, &wr)));
  say("empty_receive", "%s", completions(p.b.recv, 1, LONG));
  pair_close(&p);
}

static void without_inline_room(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  o.inline_size = 0;
  o.sge = 1;
  if (!pair_open(&p, &o)) return;
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  post_recv(&p.b, 1, 0, 100);
  ibv_query_qp(p.a.qp, &attr, IBV_QP_CAP, &init);
  int failed = post_send(&p.a, 2, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 0, attr.cap.max_inline_data);
  say("all_of_the_room", "%s", rc(failed));
  failed = post_send(&p.a, 3, IBV_SEND_SIGNALED | IBV_SEND_INLINE, 0, attr.cap.max_inline_data + 1);
  say("one_more", "%s", rc(failed));
  pair_close(&p);
}

// Of six requests the third and the last are signaled.
static void unsignaled(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  for (int i = 1; i <= 6; i++) post_recv(&p.b, i, 0, 100);
  for (int i = 1; i <= 6; i++) post_send(&p.a, i, i % 3 ? 0 : IBV_SEND_SIGNALED, 0, i);
  say("receives", "%s", completions(p.b.recv, 6, LONG));
  say("sends", "%s", completions(p.a.send, 2, LONG));
  say("no_more", "%s", completions(p.a.send, 1, SHORT));
  pair_close(&p);
}

static void signal_all(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  o.sig_all = 1;
  if (!pair_open(&p, &o)) return;
  for (int i = 1; i <= 3; i++) post_recv(&p.b, i, 0, 100);
  for (int i = 1; i <= 3; i++) post_send(&p.a, i, 0, 0, i);
  say(NULL, "%s", completions(p.a.send, 3, LONG));
  pair_close(&p);
}

// Fence behind a read, solicited: the flags by themselves do no harm.
static void flags(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_sge sge = part_of(&p.a, 0, 1000);
  fill(p.b.buf + 5000, 1000, 9);
  struct ibv_send_wr read = rdma_wr(&sge, IBV_WR_RDMA_READ, 1, at(&p.b, 5000), p.b.mr->rkey);
  post_recv(&p.b, 7, 10000, 1000);
  say("read", "%s", RC(post_wr(p.a.qp, &read)));
  // What the read brings is what the fenced send takes along.
  say("fenced", "%s", RC(post_send(&p.a, 2, IBV_SEND_SIGNALED | IBV_SEND_FENCE | IBV_SEND_SOLICITED, 0, 1000)));
  say("sends", "%s", completions(p.a.send, 2, LONG));
  got = completions(p.b.recv, 1, LONG);
  say("receive", "%s, %s", got, data_of(&p, 10000, 1000, 9));
  pair_close(&p);
}

static void gather_scatter(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  fill(p.a.buf, 3000, 3);
  struct ibv_sge out[4] = {part_of(&p.a, 0, 1000), part_of(&p.a, 1000, 1), part_of(&p.a, 1001, 0), part_of(&p.a, 1001, 1999)};
  struct ibv_sge in[4] = {part_of(&p.b, 0, 7), part_of(&p.b, 7, 2000), part_of(&p.b, 2007, 3), part_of(&p.b, 2010, 4000)};
  struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = in, .num_sge = 4}, *bad_receive;
  struct ibv_send_wr send = {.wr_id = 2, .sg_list = out, .num_sge = 4, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
  say("post_receive", "%s", RC(ibv_post_recv(p.b.qp, &receive, &bad_receive)));
  say("post_send", "%s", RC(post_wr(p.a.qp, &send)));
  say("send", "%s", completions(p.a.send, 1, LONG));
  // A length of 0 in an entry may stand for 2^31 bytes, in the standard; devices have it as nothing.
  got = completions(p.b.recv, 1, LONG);
  say("receive", "%s, %s", got, data_of(&p, 0, 3000, 3));
  pair_close(&p);
}

static void too_many_sge(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  o.sge = 2;
  if (!pair_open(&p, &o)) return;
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  ibv_query_qp(p.a.qp, &attr, IBV_QP_CAP, &init);
  struct ibv_sge list[256];
  for (int i = 0; i < 256; i++) list[i] = part_of(&p.a, i, 1);
  int many = attr.cap.max_send_sge + 1;
  struct ibv_send_wr send = {.sg_list = list, .num_sge = many < 256 ? many : 256, .opcode = IBV_WR_SEND}, *bad_send = NULL;
  say("send", "%s", RC(ibv_post_send(p.a.qp, &send, &bad_send)));
  say("send_bad_wr", "%s", yes(bad_send == &send));
  many = attr.cap.max_recv_sge + 1;
  struct ibv_recv_wr receive = {.sg_list = list, .num_sge = many < 256 ? many : 256}, *bad_receive = NULL;
  say("receive", "%s", RC(ibv_post_recv(p.a.qp, &receive, &bad_receive)));
  say("receive_bad_wr", "%s", yes(bad_receive == &receive));
  pair_close(&p);
}

// A chain that is longer than the queue: the request that didn't fit is named, those before it are carried out.
static void full_receive_queue(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  ibv_query_qp(p.b.qp, &attr, IBV_QP_CAP, &init);
  enum { MANY = 1024 };
  static struct ibv_recv_wr chain[MANY];
  struct ibv_recv_wr *bad = NULL;
  uint32_t room = attr.cap.max_recv_wr;
  if (room + 1 > MANY) return say("setup", "too large a queue");
  for (uint32_t i = 0; i <= room; i++) chain[i] = (struct ibv_recv_wr){.wr_id = i, .next = i < room ? &chain[i + 1] : NULL};
  say("post", "%s", RC(ibv_post_recv(p.b.qp, chain, &bad)));
  say("bad_wr", "%s", bad == &chain[room] ? "first beyond" : bad ? "another" : "none");
  say("again", "%s", RC(post_recv(&p.b, 1, 0, 10)));
  pair_close(&p);
}

// The send queue of a queue pair in SQD takes requests without carrying them out.
static void full_send_queue(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  ibv_query_qp(p.a.qp, &attr, IBV_QP_CAP, &init);
  say("to_sqd", "%s", rc(step(p.a.qp, &o, 0, IBV_QPS_RTS, IBV_QPS_SQD)));
  enum { MANY = 1024 };
  static struct ibv_send_wr chain[MANY];
  struct ibv_send_wr *bad = NULL;
  uint32_t room = attr.cap.max_send_wr;
  if (room + 1 > MANY) return say("setup", "too large a queue");
  for (uint32_t i = 0; i <= room; i++)
    chain[i] = (struct ibv_send_wr){.wr_id = i, .next = i < room ? &chain[i + 1] : NULL, .opcode = IBV_WR_SEND};
  say("post", "%s", RC(ibv_post_send(p.a.qp, chain, &bad)));
  say("bad_wr", "%s", bad == &chain[room] ? "first beyond" : bad ? "another" : "none");
  pair_close(&p);
}

// The unsignaled requests before a completed one have made room.
static void reuse(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  int rounds = 0;
  const char *send = "", *receive = "";
  for (; rounds < 30; rounds++) {
    int failed = 0;
    for (int i = 1; i <= 16 && !failed; i++) failed = post_recv(&p.b, i, 0, 100);
    for (int i = 1; i <= 16 && !failed; i++) failed = post_send(&p.a, i, i == 16 ? IBV_SEND_SIGNALED : 0, 0, 50);
    if (failed) {
      send = rc(failed);
      break;
    }
    send = completions(p.a.send, 1, LONG);
    receive = completions(p.b.recv, 16, LONG);
    if (strcmp(send, "#16 SEND") || !strstr(receive, "#16 RECV")) break;
  }
  say("rounds", "%d", rounds);
  say("last_send", "%s", send);
  pair_close(&p);
}

static void wc_fields(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_wc wc;
  post_recv(&p.b, 0xfedcba9876543210, 0, 100);
  post_send(&p.a, 0x8000000000000001, IBV_SEND_SIGNALED, 0, 33);
  if (next_wc(p.a.send, &wc, LONG)) {
    say("send_wr_id", "0x%llx", (unsigned long long)wc.wr_id);
    say("send_qp", "%s", wc.qp_num == p.a.qp->qp_num ? "same" : "different");
    say("send_vendor_err", "0x%x", wc.vendor_err);
  }
  if (next_wc(p.b.recv, &wc, LONG)) {
    say("receive_wr_id", "0x%llx", (unsigned long long)wc.wr_id);
    say("receive_qp", "%s", wc.qp_num == p.b.qp->qp_num ? "same" : "different");
    say("receive_byte_len", "%u", wc.byte_len);
    say("receive_flags", "0x%x", wc.wc_flags);
    say("receive_slid", "%s", yes(wc.slid == suite.port_attr.lid));
    say("receive_pkey_index", "%u", wc.pkey_index);
    say("receive_sl", "%u", wc.sl);
  }
  pair_close(&p);
}

// A queue pair that is connected with itself.
static void to_self(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  step(p.a.qp, &o, 0, IBV_QPS_RTS, IBV_QPS_RESET);
  say("connect", "%s", rc(walk(p.a.qp, &o, p.a.qp->qp_num, IBV_QPS_RTS)));
  fill(p.a.buf, 5000, 2);
  post_recv(&p.a, 1, 10000, 5000);
  post_send(&p.a, 2, IBV_SEND_SIGNALED, 0, 5000);
  say("send", "%s", completions(p.a.send, 1, LONG));
  got = completions(p.a.recv, 1, LONG);
  say("receive", "%s, %s", got, filled(p.a.buf + 10000, 5000, 2) ? "data ok" : "data wrong");
  pair_close(&p);
}

// A message that came before there was a receive waits for one if retries are without limit.
static void late_receive(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  post_send(&p.a, 1, IBV_SEND_SIGNALED, 0, 10);
  say("before", "%s", completions(p.a.send, 1, SHORT));
  post_recv(&p.b, 2, 0, 10);
  say("send", "%s", completions(p.a.send, 1, LONG));
  say("receive", "%s", completions(p.b.recv, 1, LONG));
  pair_close(&p);
}

static void both_ways(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  for (int i = 1; i <= 8; i++) {
    post_recv(&p.a, i, 30000, 3000);
    post_recv(&p.b, i, 30000, 3000);
  }
  int failed = 0;
  for (int i = 1; i <= 8; i++) {
    failed |= post_send(&p.a, i, IBV_SEND_SIGNALED, 0, 300 * i);
    failed |= post_send(&p.b, i, IBV_SEND_SIGNALED, 0, 200 * i);
  }
  say("posted", "%s", yes(!failed));
  say("a_sends", "%s", completions(p.a.send, 8, LONG));
  say("a_receives", "%s", completions(p.a.recv, 8, LONG));
  say("b_receives", "%s", completions(p.b.recv, 8, LONG));
  pair_close(&p);
}

const struct check send_checks[] = {
    {"sizes", sizes}, {"too_long", too_long}, {"immediate", immediate}, {"inline", inline_data},
    {"without_inline_room", without_inline_room}, {"unsignaled", unsignaled}, {"signal_all", signal_all},
    {"flags", flags}, {"gather_scatter", gather_scatter}, {"too_many_sge", too_many_sge},
    {"full_receive_queue", full_receive_queue}, {"full_send_queue", full_send_queue}, {"reuse", reuse},
    {"wc_fields", wc_fields}, {"to_self", to_self}, {"late_receive", late_receive}, {"both_ways", both_ways}, {0}};
