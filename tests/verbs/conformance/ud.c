// Datagrams, address handles, multicast groups.
#include "check.h"

static const char *got; // what completed, taken before what is to be seen afterwards

struct ud {
  struct pair p;
  struct ibv_ah *ah;
};

static bool ud_open(struct ud *u) {
  struct options o = defaults(IBV_QPT_UD);
  struct ibv_ah_attr path = own_path();
  if (!pair_open(&u->p, &o)) return false;
  u->ah = ibv_create_ah(u->p.pd, &path);
  if (u->ah) return true;
  say("setup", "%s", errno_name(errno));
  pair_close(&u->p);
  return false;
}

static void ud_close(struct ud *u) {
  if (u->ah) ibv_destroy_ah(u->ah);
  pair_close(&u->p);
}

static int ud_send(struct ud *u, uint64_t id, size_t offset, uint32_t size) {
  return post_ud(&u->p.a, u->ah, u->p.b.qp->qp_num, QKEY, id, IBV_SEND_SIGNALED, offset, size);
}

// The first 40 bytes of the buffer are for the route header, and count.
static void messages(void) {
  struct ud u;
  if (!ud_open(&u)) return;
  struct side *a = &u.p.a, *b = &u.p.b;
  static const uint32_t sizes[] = {0, 1, 100, 1024, 4096};
  for (int i = 0; i < 5; i++) {
    if (sizes[i] > 128u << suite.port_attr.active_mtu) continue;
    fill(a->buf, sizes[i], i);
    memset(b->buf, 0xaa, 5000);
    post_recv(b, 1, 0, sizes[i] + 40);
    ud_send(&u, 2, 0, sizes[i]);
    const char *sent = completions(a->send, 1, LONG);
    got = completions(b->recv, 1, 3000);
    say(text("%u", sizes[i]), "%s; %s; data %s", sent, got, filled(b->buf + 40, sizes[i], i) ? "ok" : "wrong");
  }
  ud_close(&u);
}

static void wc_fields(void) {
  struct ud u;
  if (!ud_open(&u)) return;
  struct side *a = &u.p.a, *b = &u.p.b;
  struct ibv_wc wc;
  memset(b->buf, 0xaa, 200);
  post_recv(b, 1, 0, 200);
  struct ibv_sge sge = part_of(a, 0, 60);
  struct ibv_send_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
                           .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0xabcdef01)};
  wr.wr.ud.ah = u.ah;
  wr.wr.ud.remote_qpn = b->qp->qp_num;
  wr.wr.ud.remote_qkey = QKEY;
  say("post", "%s", RC(post_wr(a->qp, &wr)));
  if (next_wc(b->recv, &wc, LONG)) {
    say("receive", "%s", describe(&wc));
    say("grh", "%s", yes(wc.wc_flags & IBV_WC_GRH));
    say("src_qp", "%s", wc.src_qp == a->qp->qp_num ? "same" : "different");
    say("qp", "%s", wc.qp_num == b->qp->qp_num ? "same" : "different");
    say("pkey_index", "%u", wc.pkey_index);
    say("slid", "%s", yes(wc.slid == suite.port_attr.lid));
    say("beyond", "%s", all_bytes(b->buf + 100, 100, 0xaa) ? "untouched" : "written");
    // A reply to where it came from.
    struct ibv_ah_attr attr;
    say("init_ah", "%s", RC(ibv_init_ah_from_wc(suite.ctx, suite.port, &wc, (struct ibv_grh *)b->buf, &attr)));
    struct ibv_ah *ah;
    say("ah_from_wc", "%s", MADE(ah, ibv_create_ah_from_wc(u.p.pd, &wc, (struct ibv_grh *)b->buf, suite.port)));
    if (ah) {
      post_recv(a, 3, 0, 200);
      say("reply", "%s", RC(post_ud(b, ah, wc.src_qp, QKEY, 4, IBV_SEND_SIGNALED, 1000, 20)));
      say("reply_send", "%s", completions(b->send, 1, LONG));
      say("reply_receive", "%s", completions(a->recv, 1, 3000));
      ibv_destroy_ah(ah);
    }
  }
  ud_close(&u);
}

// With a route header: IPv4 in its last 20 bytes, or IPv6 and InfiniBand in all 40.
static void route_header(void) {
  struct ud u;
  if (!ud_open(&u)) return;
  struct side *b = &u.p.b;
  struct ibv_wc wc;
  memset(b->buf, 0, 200);
  post_recv(b, 1, 0, 200);
  ud_send(&u, 2, 0, 60);
  if (next_wc(b->recv, &wc, LONG) && wc.wc_flags & IBV_WC_GRH) {
    bool v4 = (b->buf[20] & 0xf0) == 0x40;
    const struct ibv_grh *grh = (struct ibv_grh *)b->buf;
    say("version", "%s", v4 ? "IPv4" : text("%d", b->buf[0] >> 4));
    if (v4) {
      say("protocol", "%d", b->buf[29]);
      say("ttl", "%d", b->buf[28]);
      say("addresses", "%s", yes(!memcmp(b->buf + 32, suite.gid.raw + 12, 4) && !memcmp(b->buf + 36, suite.gid.raw + 12, 4)));
    } else {
      say("next_header", "%d", grh->next_hdr);
      say("hop_limit", "%d", grh->hop_limit);
      say("addresses", "%s", yes(!memcmp(&grh->sgid, &suite.gid, 16) && !memcmp(&grh->dgid, &suite.gid, 16)));
    }
  } else
    say(NULL, "none");
  ud_close(&u);
}

// Sends that arrive nowhere complete like any other.
static void dropped(const char *name, struct ud *u, uint32_t qpn, uint32_t qkey, uint32_t room) {
  if (room) post_recv(&u->p.b, 1, 0, room);
  int failed = post_ud(&u->p.a, u->ah, qpn, qkey, 2, IBV_SEND_SIGNALED, 0, 100);
  const char *sent = failed ? "-" : completions(u->p.a.send, 1, 3000), *received = completions(u->p.b.recv, 1, SHORT);
  say(name, "post %s; %s; %s; %s", rc(failed), sent, received, state_name(state_of(u->p.b.qp)));
}

static void drops(void) {
  struct ud u;
  for (int i = 0; i < 5; i++) {
    if (!ud_open(&u)) return;
    uint32_t peer = u.p.b.qp->qp_num;
    switch (i) {
    case 0: dropped("wrong_qkey", &u, peer, QKEY + 1, 200); break;
    case 1: dropped("no_such_qp", &u, 0xfffff0, QKEY, 200); break;
    case 2: dropped("no_receive", &u, peer, QKEY, 0); break;
    case 3: dropped("receive_too_short", &u, peer, QKEY, 139); break;
    // The high bit stands for the queue pair's own Q_Key.
    default: dropped("own_qkey", &u, peer, 0x80000000, 200);
    }
    ud_close(&u);
  }
}

static void after_drop(void) {
  struct ud u;
  if (!ud_open(&u)) return;
  ud_send(&u, 1, 0, 10);
  pause_ms(200);
  post_recv(&u.p.b, 2, 0, 100);
  ud_send(&u, 3, 0, 20);
  say("sends", "%s", completions(u.p.a.send, 2, LONG));
  say("receives", "%s", completions(u.p.b.recv, 2, SHORT));
  ud_close(&u);
}

static void too_long(void) {
  struct ud u;
  if (!ud_open(&u)) return;
  uint32_t mtu = 128u << suite.port_attr.active_mtu;
  post_recv(&u.p.b, 1, 0, mtu + 100);
  int failed = ud_send(&u, 2, 0, mtu + 1);
  say("post", "%s", rc(failed));
  say("send", "%s", completions(u.p.a.send, 1, failed ? SHORT : 3000));
  say("receive", "%s", completions(u.p.b.recv, 1, SHORT));
  say("states", "%s %s", state_name(state_of(u.p.a.qp)), state_name(state_of(u.p.b.qp)));
  ud_close(&u);
}

static void not_for_ud(void) {
  static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
  static const char *const names[] = {"write", "write_imm", "read", "fetch_add"};
  for (int i = 0; i < 4; i++) {
    struct ud u;
    if (!ud_open(&u)) return;
    struct ibv_sge sge = part_of(&u.p.a, 0, 8);
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcodes[i], .send_flags = IBV_SEND_SIGNALED};
    wr.wr.ud.ah = u.ah;
    wr.wr.ud.remote_qpn = u.p.b.qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
    int failed = post_wr(u.p.a.qp, &wr);
    const char *sent = failed ? "-" : completions(u.p.a.send, 1, 2000);
    say(names[i], "post %s; %s; %s", rc(failed), sent, state_name(state_of(u.p.a.qp)));
    ud_close(&u);
  }
}

static void inline_data(void) {
  struct ud u;
  if (!ud_open(&u)) return;
  uint8_t local[32];
  fill(local, 32, 1);
  struct ibv_sge sge = {.addr = (uintptr_t)local, .length = 32};
  struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE};
  wr.wr.ud.ah = u.ah;
  wr.wr.ud.remote_qpn = u.p.b.qp->qp_num;
  wr.wr.ud.remote_qkey = QKEY;
  post_recv(&u.p.b, 2, 0, 100);
  say("post", "%s", RC(post_wr(u.p.a.qp, &wr)));
  memset(local, 0, 32);
  got = completions(u.p.b.recv, 1, 3000);
  say("receive", "%s, data %s", got, filled(u.p.b.buf + 40, 32, 1) ? "ok" : "wrong");
  ud_close(&u);
}

static const char *try_ah(struct ibv_ah_attr attr) {
  struct ibv_ah *ah;
  const char *answer = MADE(ah, ibv_create_ah(suite.pd, &attr));
  if (!ah) return answer;
  int failed = ibv_destroy_ah(ah);
  return failed ? text("ok, destroy %s", rc(failed)) : answer;
}

static void handles(void) {
  struct ibv_ah_attr attr = own_path();
  say("right", "%s", try_ah(attr));
  attr.port_num = 0;
  say("port_0", "%s", try_ah(attr));
  attr.port_num = 99;
  say("port_99", "%s", try_ah(attr));
  attr = own_path();
  attr.is_global = 0;
  say("no_grh", "%s", try_ah(attr));
  attr = own_path();
  attr.is_global = 1;
  attr.grh.sgid_index = 200;
  say("gid_index_200", "%s", try_ah(attr));
  attr = own_path();
  attr.sl = 16;
  say("sl_16", "%s", try_ah(attr));
  attr = own_path();
  attr.static_rate = 99;
  say("rate_99", "%s", try_ah(attr));
  attr = own_path();
  attr.is_global = 1;
  memset(&attr.grh.dgid, 0, 16);
  say("zero_dgid", "%s", try_ah(attr));
}

static void multicast(void) {
  struct ud u;
  if (!ud_open(&u)) return;
  struct ibv_qp *qp = u.p.b.qp;
  union ibv_gid group = {.raw = {0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3}};
  say("attach", "%s", RC(ibv_attach_mcast(qp, &group, 0xc001)));
  say("attach_again", "%s", RC(ibv_attach_mcast(qp, &group, 0xc001)));
  say("attach_unicast", "%s", RC(ibv_attach_mcast(qp, &suite.gid, 0xc001)));
  say("attach_unicast_lid", "%s", RC(ibv_attach_mcast(qp, &group, 5)));
  say("destroy_attached", "%s", RC(ibv_destroy_qp(qp)));
  say("detach", "%s", RC(ibv_detach_mcast(qp, &group, 0xc001)));
  say("detach_again", "%s", RC(ibv_detach_mcast(qp, &group, 0xc001)));
  ud_close(&u);
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  say("attach_rc", "%s", RC(ibv_attach_mcast(p.a.qp, &group, 0xc001)));
  say("detach_rc", "%s", RC(ibv_detach_mcast(p.a.qp, &group, 0xc001)));
  pair_close(&p);
}

// One message to a group of two members and one stranger; the sender is no member.
static void group_message(void) {
  struct ud u;
  struct pair other;
  struct options o = defaults(IBV_QPT_UD);
  if (!ud_open(&u)) return;
  if (!pair_open(&other, &o)) return ud_close(&u);
  union ibv_gid group = {.raw = {0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3}};
  struct ibv_ah_attr path = own_path();
  path.is_global = 1;
  path.dlid = 0xc001;
  path.grh.dgid = group;
  path.grh.hop_limit = 1;
  struct ibv_ah *ah;
  say("handle", "%s", MADE(ah, ibv_create_ah(u.p.pd, &path)));
  say("attach", "%s", RC(ibv_attach_mcast(u.p.b.qp, &group, 0xc001)));
  say("attach_other", "%s", RC(ibv_attach_mcast(other.b.qp, &group, 0xc001)));
  post_recv(&u.p.b, 1, 0, 200);
  post_recv(&other.b, 1, 0, 200);
  post_recv(&other.a, 1, 0, 200);
  if (ah) say("post", "%s", RC(post_ud(&u.p.a, ah, 0xffffff, QKEY, 2, IBV_SEND_SIGNALED, 0, 50)));
  say("send", "%s", completions(u.p.a.send, 1, 3000));
  say("member", "%s", completions(u.p.b.recv, 1, 2000));
  say("other_member", "%s", completions(other.b.recv, 1, 2000));
  say("stranger", "%s", completions(other.a.recv, 1, SHORT));
  say("detach", "%s", RC(ibv_detach_mcast(u.p.b.qp, &group, 0xc001)));
  say("detach_other", "%s", RC(ibv_detach_mcast(other.b.qp, &group, 0xc001)));
  if (ah) ibv_destroy_ah(ah);
  pair_close(&other);
  ud_close(&u);
}

static void pd_mismatch(void) {
  struct ud u;
  if (!ud_open(&u)) return;
  struct ibv_ah_attr path = own_path();
  struct ibv_ah *ah = ibv_create_ah(suite.pd, &path);
  post_recv(&u.p.b, 1, 0, 100);
  int failed = post_ud(&u.p.a, ah, u.p.b.qp->qp_num, QKEY, 2, IBV_SEND_SIGNALED, 0, 10);
  const char *sent = failed ? "-" : completions(u.p.a.send, 1, 3000);
  say(NULL, "post %s; %s; %s", rc(failed), sent, completions(u.p.b.recv, 1, SHORT));
  ibv_destroy_ah(ah);
  ud_close(&u);
}

const struct check ud_checks[] = {
    {"messages", messages}, {"wc_fields", wc_fields}, {"route_header", route_header}, {"drops", drops},
    {"after_drop", after_drop}, {"too_long", too_long}, {"not_for_ud", not_for_ud}, {"inline", inline_data},
    {"handles", handles}, {"multicast", multicast}, {"group_message", group_message}, {"pd_mismatch", pd_mismatch}, {0}};
