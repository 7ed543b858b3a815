// The extended interfaces: completion queues that are read field by field, queue pairs whose requests are built by calls.
#include "check.h"

static const char *got; // what completed, taken before what is to be seen afterwards

static struct ibv_cq_ex *make_cq_ex(uint32_t cqe, uint64_t flags) {
  struct ibv_cq_init_attr_ex init = {.cqe = cqe, .wc_flags = flags};
  return ibv_create_cq_ex(suite.ctx, &init);
}

static const char *try_cq_ex(struct ibv_cq_init_attr_ex init) {
  struct ibv_cq_ex *cq;
  const char *answer = MADE(cq, ibv_create_cq_ex(suite.ctx, &init));
  if (!cq) return answer;
  int failed = ibv_destroy_cq(ibv_cq_ex_to_cq(cq));
  return failed ? text("ok, destroy %s", rc(failed)) : answer;
}

static void cq_create(void) {
  static const struct { const char *name; uint64_t flag; } flags[] = {
      {"none", 0}, {"standard", IBV_WC_STANDARD_FLAGS}, {"timestamp", IBV_WC_EX_WITH_COMPLETION_TIMESTAMP},
      {"wallclock", IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK}, {"cvlan", IBV_WC_EX_WITH_CVLAN},
      {"flow_tag", IBV_WC_EX_WITH_FLOW_TAG}, {"tm_info", IBV_WC_EX_WITH_TM_INFO}, {"unknown", 1ull << 40}};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
    say(flags[i].name, "%s", try_cq_ex((struct ibv_cq_init_attr_ex){.cqe = 16, .wc_flags = flags[i].flag}));
  say("zero_entries", "%s", try_cq_ex((struct ibv_cq_init_attr_ex){.cqe = 0}));
  say("too_many_entries", "%s", try_cq_ex((struct ibv_cq_init_attr_ex){.cqe = suite.attr.max_cqe + 1}));
  say("bad_vector", "%s", try_cq_ex((struct ibv_cq_init_attr_ex){.cqe = 1, .comp_vector = suite.ctx->num_comp_vectors}));
  say("unknown_comp_mask", "%s", try_cq_ex((struct ibv_cq_init_attr_ex){.cqe = 1, .comp_mask = 1 << 10}));
  say("single_threaded", "%s", try_cq_ex((struct ibv_cq_init_attr_ex){.cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED}));
  say("ignore_overrun", "%s", try_cq_ex((struct ibv_cq_init_attr_ex){.cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN}));
}

// A queue pair with the calls for all operations, on completion queues of the extended kind.
enum { OPS = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
             IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
             IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
       MORE_OPS = OPS | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV,
       UD_OPS = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM };

static struct ibv_qp *make_qp_ex(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type, uint64_t ops) {
  struct options o = defaults(type);
  struct ibv_qp_init_attr_ex init = {
      .send_cq = cq, .recv_cq = cq, .qp_type = type, .pd = pd,
      .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = ops,
      .cap = {.max_send_wr = o.send_wr, .max_recv_wr = o.recv_wr, .max_send_sge = o.sge, .max_recv_sge = o.sge,
              .max_inline_data = o.inline_size}};
  return ibv_create_qp_ex(suite.ctx, &init);
}

struct built {
  struct pair p; // connected anew with qp, which takes the place of a
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  struct ibv_qp_ex *ex;
};

static bool built_open(struct built *b, enum ibv_qp_type type, uint64_t ops) {
  struct options o = defaults(type);
  if (!pair_open(&b->p, &o)) return false;
  b->cq = ibv_create_cq(suite.ctx, 64, NULL, NULL, 0);
  errno = 0;
  b->qp = make_qp_ex(b->p.pd, b->cq, type, ops);
  if (!b->qp) {
    say("setup", "%s", errno_name(errno));
    ibv_destroy_cq(b->cq);
    pair_close(&b->p);
    return false;
  }
  b->ex = ibv_qp_to_qp_ex(b->qp);
  step(b->p.b.qp, &o, 0, IBV_QPS_RTS, IBV_QPS_RESET);
  walk(b->p.b.qp, &o, b->qp->qp_num, IBV_QPS_RTS);
  walk(b->qp, &o, b->p.b.qp->qp_num, IBV_QPS_RTS);
  return true;
}

static void built_close(struct built *b) {
  ibv_destroy_qp(b->qp);
  ibv_destroy_cq(b->cq);
  pair_close(&b->p);
}

static void begin(struct built *b, uint64_t id) {
  ibv_wr_start(b->ex);
  b->ex->wr_id = id;
  b->ex->wr_flags = IBV_SEND_SIGNALED;
}

static void set_sge(struct built *b, size_t offset, uint32_t size) {
  ibv_wr_set_sge(b->ex, b->p.a.mr->lkey, at(&b->p.a, offset), size);
}

static void qp_create(void) {
  struct ibv_cq *cq = ibv_create_cq(suite.ctx, 64, NULL, NULL, 0);
  struct ibv_qp *qp;
  static const struct { const char *name; enum ibv_qp_type type; uint64_t ops; } all[] = {
      {"rc", IBV_QPT_RC, OPS}, {"rc_windows", IBV_QPT_RC, MORE_OPS}, {"uc_write", IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_WRITE},
      {"uc_read", IBV_QPT_UC, IBV_QP_EX_WITH_RDMA_READ}, {"ud", IBV_QPT_UD, UD_OPS}, {"ud_write", IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_WRITE},
      {"rc_tso", IBV_QPT_RC, IBV_QP_EX_WITH_TSO}, {"rc_none", IBV_QPT_RC, 0}, {"rc_unknown", IBV_QPT_RC, 1ull << 40},
      {"rc_atomic_write", IBV_QPT_RC, IBV_QP_EX_WITH_ATOMIC_WRITE}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    say(all[i].name, "%s", MADE(qp, make_qp_ex(suite.pd, cq, all[i].type, all[i].ops)));
    if (qp) ibv_destroy_qp(qp);
  }
  struct ibv_qp_init_attr_ex init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
  say("without_pd", "%s", MADE(qp, ibv_create_qp_ex(suite.ctx, &init)));
  init.pd = suite.pd;
  init.comp_mask = IBV_QP_INIT_ATTR_PD;
  say("pd_alone", "%s", MADE(qp, ibv_create_qp_ex(suite.ctx, &init)));
  if (qp) ibv_destroy_qp(qp);
  init.comp_mask = IBV_QP_INIT_ATTR_PD | 1 << 20;
  say("unknown_comp_mask", "%s", MADE(qp, ibv_create_qp_ex(suite.ctx, &init)));
  ibv_destroy_cq(cq);
}

// Every operation by its call.
static void operations(void) {
  struct built b;
  if (!built_open(&b, IBV_QPT_RC, OPS)) return;
  struct pair *p = &b.p;
  uint32_t rkey = p->b.mr->rkey;
  fill(p->a.buf, 3000, 1);
  for (int i = 1; i <= 3; i++) post_recv(&p->b, i, 0, 3000);
  begin(&b, 1);
  ibv_wr_send(b.ex);
  set_sge(&b, 0, 1000);
  say("send", "%s", RC(ibv_wr_complete(b.ex)));
  say("send_done", "%s", completions(b.cq, 1, LONG));
  begin(&b, 2);
  ibv_wr_send_imm(b.ex, htonl(0x42));
  set_sge(&b, 0, 1000);
  say("send_imm", "%s", RC(ibv_wr_complete(b.ex)));
  say("send_imm_done", "%s", completions(b.cq, 1, LONG));
  begin(&b, 3);
  ibv_wr_rdma_write(b.ex, rkey, at(&p->b, 10000));
  set_sge(&b, 0, 3000);
  say("write", "%s", RC(ibv_wr_complete(b.ex)));
  got = completions(b.cq, 1, LONG);
  say("write_done", "%s, data %s", got, filled(p->b.buf + 10000, 3000, 1) ? "ok" : "wrong");
  begin(&b, 4);
  ibv_wr_rdma_write_imm(b.ex, rkey, at(&p->b, 20000), htonl(0x43));
  set_sge(&b, 0, 3000);
  say("write_imm", "%s", RC(ibv_wr_complete(b.ex)));
  say("write_imm_done", "%s", completions(b.cq, 1, LONG));
  begin(&b, 5);
  ibv_wr_rdma_read(b.ex, rkey, at(&p->b, 10000));
  set_sge(&b, 30000, 3000);
  say("read", "%s", RC(ibv_wr_complete(b.ex)));
  got = completions(b.cq, 1, LONG);
  say("read_done", "%s, data %s", got, filled(p->a.buf + 30000, 3000, 1) ? "ok" : "wrong");
  say("receives", "%s", completions(p->b.recv, 3, LONG));
  built_close(&b);
}

static void atomics(void) {
  struct built b;
  if (!built_open(&b, IBV_QPT_RC, OPS)) return;
  uint64_t *target = (uint64_t *)b.p.b.buf, *result = (uint64_t *)b.p.a.buf;
  *target = 5;
  begin(&b, 1);
  ibv_wr_atomic_fetch_add(b.ex, b.p.b.mr->rkey, at(&b.p.b, 0), 2);
  set_sge(&b, 0, 8);
  say("add", "%s", RC(ibv_wr_complete(b.ex)));
  got = completions(b.cq, 1, LONG);
  say("add_done", "%s; was 0x%llx, is 0x%llx", got, (unsigned long long)*result, (unsigned long long)*target);
  begin(&b, 2);
  ibv_wr_atomic_cmp_swp(b.ex, b.p.b.mr->rkey, at(&b.p.b, 0), 7, 99);
  set_sge(&b, 0, 8);
  say("swap", "%s", RC(ibv_wr_complete(b.ex)));
  got = completions(b.cq, 1, LONG);
  say("swap_done", "%s; was 0x%llx, is 0x%llx", got, (unsigned long long)*result, (unsigned long long)*target);
  // An address that is not a multiple of eight, which posting a list may refuse beforehand.
  post_recv(&b.p.b, 7, 0, 10);
  begin(&b, 3);
  ibv_wr_atomic_fetch_add(b.ex, b.p.b.mr->rkey, at(&b.p.b, 4), 2);
  set_sge(&b, 0, 8);
  say("misaligned", "%s", RC(ibv_wr_complete(b.ex)));
  say("misaligned_done", "%s", completions(b.cq, 1, 3000));
  say("misaligned_responder", "%s", completions(b.p.b.recv, 1, SHORT));
  say("states", "%s %s", state_name(state_of(b.qp)), state_name(state_of(b.p.b.qp)));
  built_close(&b);
}

// As one piece or as three, with the flag that says so besides or without it.
static void one_inline(const char *name, bool list, unsigned flags) {
  struct built b;
  if (!built_open(&b, IBV_QPT_RC, OPS)) return;
  uint8_t local[60];
  struct ibv_data_buf pieces[3] = {{local, 20}, {local + 20, 1}, {local + 21, 39}};
  fill(local, 60, 3);
  post_recv(&b.p.b, 1, 0, 100);
  begin(&b, 1);
  b.ex->wr_flags |= flags;
  ibv_wr_send(b.ex);
  if (list) ibv_wr_set_inline_data_list(b.ex, 3, pieces);
  else ibv_wr_set_inline_data(b.ex, local, 60);
  memset(local, 0, 60);
  const char *posted = RC(ibv_wr_complete(b.ex)), *sent = completions(b.cq, 1, LONG);
  got = completions(b.p.b.recv, 1, SHORT);
  say(name, "post %s; %s; %s; data %s", posted, sent, got, filled(b.p.b.buf, 60, 3) ? "ok" : "wrong");
  built_close(&b);
}

static void inline_data(void) {
  one_inline("one", false, 0);
  one_inline("list", true, 0);
  one_inline("one_with_flag", false, IBV_SEND_INLINE);
  one_inline("list_with_flag", true, IBV_SEND_INLINE);
}

static void data(void) {
  struct built b;
  if (!built_open(&b, IBV_QPT_RC, OPS)) return;
  struct pair *p = &b.p;
  fill(p->a.buf, 2000, 5);
  struct ibv_sge sges[2] = {part_of(&p->a, 0, 700), part_of(&p->a, 700, 1300)};
  post_recv(&p->b, 3, 0, 2000);
  begin(&b, 3);
  ibv_wr_send(b.ex);
  ibv_wr_set_sge_list(b.ex, 2, sges);
  say("sge_list", "%s", RC(ibv_wr_complete(b.ex)));
  got = completions(p->b.recv, 1, LONG);
  say("sge_list_received", "%s, data %s", got, filled(p->b.buf, 2000, 5) ? "ok" : "wrong");
  post_recv(&p->b, 4, 0, 100);
  begin(&b, 4);
  ibv_wr_send(b.ex);
  ibv_wr_set_sge_list(b.ex, 0, NULL);
  say("no_sge", "%s", RC(ibv_wr_complete(b.ex)));
  say("no_sge_received", "%s", completions(p->b.recv, 1, LONG));
  say("completions", "%s", completions(b.cq, 2, LONG));
  built_close(&b);
}

// Several requests in one go; then some that are thrown away; then more than fit.
static void batches(void) {
  struct built b;
  if (!built_open(&b, IBV_QPT_RC, OPS)) return;
  struct pair *p = &b.p;
  for (int i = 1; i <= 3; i++) post_recv(&p->b, i, 0, 100);
  begin(&b, 1);
  for (int i = 1; i <= 3; i++) {
    b.ex->wr_id = i;
    b.ex->wr_flags = i == 2 ? 0 : IBV_SEND_SIGNALED;
    ibv_wr_send(b.ex);
    set_sge(&b, 0, i);
  }
  say("three", "%s", RC(ibv_wr_complete(b.ex)));
  say("three_done", "%s", completions(b.cq, 2, LONG));
  say("three_received", "%s", completions(p->b.recv, 3, LONG));
  begin(&b, 9);
  ibv_wr_send(b.ex);
  set_sge(&b, 0, 10);
  ibv_wr_abort(b.ex);
  say("aborted", "%s", completions(b.cq, 1, SHORT));
  begin(&b, 10);
  say("nothing", "%s", RC(ibv_wr_complete(b.ex)));
  post_recv(&p->b, 4, 0, 100);
  begin(&b, 11);
  ibv_wr_send(b.ex);
  set_sge(&b, 0, 10);
  say("after_abort", "%s", RC(ibv_wr_complete(b.ex)));
  say("after_abort_done", "%s", completions(b.cq, 1, LONG));
  say("after_abort_received", "%s", completions(p->b.recv, 1, LONG));
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  ibv_query_qp(b.qp, &attr, IBV_QP_CAP, &init);
  begin(&b, 12);
  for (uint32_t i = 0; i <= attr.cap.max_send_wr; i++) {
    ibv_wr_send(b.ex);
    set_sge(&b, 0, 10);
  }
  say("too_many", "%s", RC(ibv_wr_complete(b.ex)));
  say("too_many_done", "%s", completions(b.cq, 1, SHORT));
  built_close(&b);
}

static void too_much_inline(void) {
  struct built b;
  if (!built_open(&b, IBV_QPT_RC, OPS)) return;
  static uint8_t large[60000];
  begin(&b, 1);
  ibv_wr_send(b.ex);
  ibv_wr_set_inline_data(b.ex, large, sizeof large);
  say("inline", "%s", RC(ibv_wr_complete(b.ex)));
  struct ibv_sge list[200];
  for (int i = 0; i < 200; i++) list[i] = part_of(&b.p.a, 0, 1);
  begin(&b, 2);
  ibv_wr_send(b.ex);
  ibv_wr_set_sge_list(b.ex, 200, list);
  say("sge", "%s", RC(ibv_wr_complete(b.ex)));
  built_close(&b);
}

static void windows(void) {
  struct built b;
  if (!built_open(&b, IBV_QPT_RC, MORE_OPS)) return;
  struct ibv_mw *mw = ibv_alloc_mw(b.p.pd, IBV_MW_TYPE_2);
  if (mw) {
    struct ibv_mw_bind_info info = {.mr = b.p.a.mr, .addr = at(&b.p.a, 0), .length = 4096, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    uint32_t key = ibv_inc_rkey(mw->rkey);
    begin(&b, 1);
    ibv_wr_bind_mw(b.ex, mw, key, &info);
    say("bind", "%s", RC(ibv_wr_complete(b.ex)));
    say("bind_done", "%s", completions(b.cq, 1, LONG));
    struct ibv_sge sge = part_of(&b.p.b, 0, 10);
    struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE, 2, at(&b.p.a, 0), key);
    post_wr(b.p.b.qp, &wr);
    say("write", "%s", completions(b.p.b.send, 1, LONG));
    begin(&b, 3);
    ibv_wr_local_inv(b.ex, key);
    say("invalidate", "%s", RC(ibv_wr_complete(b.ex)));
    say("invalidate_done", "%s", completions(b.cq, 1, LONG));
    ibv_dealloc_mw(mw);
  } else
    say("setup", "%s", errno_name(errno));
  built_close(&b);
}

static void datagrams(void) {
  struct built b;
  if (!built_open(&b, IBV_QPT_UD, UD_OPS)) return;
  struct ibv_ah_attr path = own_path();
  struct ibv_ah *ah = ibv_create_ah(b.p.pd, &path);
  post_recv(&b.p.b, 1, 0, 200);
  begin(&b, 2);
  ibv_wr_send_imm(b.ex, htonl(7));
  ibv_wr_set_ud_addr(b.ex, ah, b.p.b.qp->qp_num, QKEY);
  set_sge(&b, 0, 100);
  say("send", "%s", RC(ibv_wr_complete(b.ex)));
  say("send_done", "%s", completions(b.cq, 1, LONG));
  say("receive", "%s", completions(b.p.b.recv, 1, 3000));
  ibv_destroy_ah(ah);
  built_close(&b);
}

static void to_ex_of_plain(void) {
  struct ibv_cq *cq = ibv_create_cq(suite.ctx, 4, NULL, NULL, 0);
  struct options o = defaults(IBV_QPT_RC);
  struct ibv_qp *qp = make_qp(suite.pd, cq, cq, &o);
  if (!qp) return say("setup", "%s", errno_name(errno));
  say(NULL, "%s", ibv_qp_to_qp_ex(qp) ? "there" : "NULL");
  ibv_destroy_qp(qp);
  ibv_destroy_cq(cq);
}

// A queue pair of b's memory on an extended completion queue, with three receives that have completed.
struct reading {
  struct ibv_cq_ex *ex;
  struct pair p;
  struct ibv_qp *qp;
  struct side side;
};

static bool reading_open(struct reading *r) {
  struct options o = defaults(IBV_QPT_RC);
  r->ex = make_cq_ex(64, IBV_WC_STANDARD_FLAGS);
  if (!r->ex) {
    say("setup", "%s", errno_name(errno));
    return false;
  }
  if (!pair_open(&r->p, &o)) return false;
  struct ibv_cq *cq = ibv_cq_ex_to_cq(r->ex);
  struct pair *p = &r->p;
  r->qp = make_qp(p->pd, cq, cq, &o);
  step(p->a.qp, &o, 0, IBV_QPS_RTS, IBV_QPS_RESET);
  walk(r->qp, &o, p->a.qp->qp_num, IBV_QPS_RTS);
  walk(p->a.qp, &o, r->qp->qp_num, IBV_QPS_RTS);
  r->side = (struct side){.qp = r->qp, .mr = p->b.mr, .buf = p->b.buf};
  for (int i = 1; i <= 3; i++) post_recv(&r->side, i, 0, 100);
  for (int i = 1; i <= 3; i++) {
    struct ibv_sge sge = part_of(&p->a, 0, 10 * i);
    struct ibv_send_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = i == 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0x77)};
    post_wr(p->a.qp, &wr);
  }
  completions(p->a.send, 3, LONG);
  return true;
}

static void reading_close(struct reading *r) {
  ibv_destroy_qp(r->qp);
  pair_close(&r->p);
  ibv_destroy_cq(ibv_cq_ex_to_cq(r->ex));
}

static void reading_empty(void) {
  struct ibv_cq_ex *ex = make_cq_ex(64, IBV_WC_STANDARD_FLAGS);
  struct ibv_poll_cq_attr attr = {0};
  if (!ex) return say("setup", "%s", errno_name(errno));
  say("start", "%s", RC(ibv_start_poll(ex, &attr)));
  say("plain", "%d", ibv_poll_cq(ibv_cq_ex_to_cq(ex), 1, &(struct ibv_wc){0}));
  attr.comp_mask = 1;
  say("unknown_comp_mask", "%s", RC(ibv_start_poll(ex, &attr)));
  say("destroy", "%s", RC(ibv_destroy_cq(ibv_cq_ex_to_cq(ex))));
}

// All three, field by field; the batch is ended although there was no next one, as the manual page has it.
static void reading_all(void) {
  struct reading r;
  if (!reading_open(&r)) return;
  struct ibv_poll_cq_attr attr = {0};
  struct ibv_cq_ex *ex = r.ex;
  int failed = ibv_start_poll(ex, &attr);
  say("start", "%s", rc(failed));
  for (int i = 1; !failed && i <= 4; i++) {
    const char *line = text("#%d %s %s len=%u", (int)ex->wr_id, status_name(ex->status), opcode_name(ibv_wc_read_opcode(ex)), ibv_wc_read_byte_len(ex));
    if (ibv_wc_read_wc_flags(ex) & IBV_WC_WITH_IMM) line = text("%s imm=0x%x", line, ntohl(ibv_wc_read_imm_data(ex)));
    say(text("entry_%d", i), "%s qp=%s", line, ibv_wc_read_qp_num(ex) == r.qp->qp_num ? "same" : "different");
    failed = ibv_next_poll(ex);
    say(text("next_%d", i), "%s", rc(failed));
  }
  ibv_end_poll(ex);
  failed = ibv_start_poll(ex, &attr);
  say("empty_then", "%s", rc(failed));
  if (!failed) ibv_end_poll(ex);
  reading_close(&r);
}

// One of three, then the batch is ended: the plain call finds the others.
static void reading_some(void) {
  struct reading r;
  if (!reading_open(&r)) return;
  struct ibv_poll_cq_attr attr = {0};
  int failed = ibv_start_poll(r.ex, &attr);
  say("start", "%s", rc(failed));
  if (!failed) {
    say("first", "#%d", (int)r.ex->wr_id);
    ibv_end_poll(r.ex);
  }
  say("plain", "%s", completions(ibv_cq_ex_to_cq(r.ex), 2, LONG));
  reading_close(&r);
}

const struct check ex_checks[] = {
    {"cq_create", cq_create}, {"qp_create", qp_create}, {"operations", operations}, {"atomics", atomics}, {"inline", inline_data},
    {"data", data},
    {"batches", batches}, {"too_much", too_much_inline}, {"windows", windows}, {"datagrams", datagrams},
    {"to_ex_of_plain", to_ex_of_plain}, {"reading_empty", reading_empty}, {"reading_all", reading_all},
    {"reading_some", reading_some}, {0}};
