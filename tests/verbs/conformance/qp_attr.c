// What queue pairs may be created with, and what the attributes of one may be.
#include "check.h"

static struct ibv_cq *cq;

static bool have_cq(void) {
  cq = ibv_create_cq(suite.ctx, 64, NULL, NULL, 0);
  if (!cq) say("setup", "%s", errno_name(errno));
  return cq;
}

// Creates and destroys; what was granted must not be less than what was asked for.
static const char *try_init(struct ibv_qp_init_attr init) {
  struct ibv_qp_cap asked = init.cap, *got = &init.cap;
  struct ibv_qp *qp;
  const char *answer = MADE(qp, ibv_create_qp(suite.pd, &init));
  if (!qp) return answer;
  bool enough = got->max_send_wr >= asked.max_send_wr && got->max_recv_wr >= asked.max_recv_wr &&
                got->max_send_sge >= asked.max_send_sge && got->max_recv_sge >= asked.max_recv_sge &&
                got->max_inline_data >= asked.max_inline_data;
  int failed = ibv_destroy_qp(qp);
  if (failed) return text("ok, destroy %s", rc(failed));
  return enough ? "ok" : "ok, less than asked for";
}

static struct ibv_qp_init_attr plain(enum ibv_qp_type type) {
  return (struct ibv_qp_init_attr){.send_cq = cq, .recv_cq = cq, .qp_type = type,
                                   .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
}

static void types(void) {
  if (!have_cq()) return;
  for (int type = 0; type < 12; type++) say(type_name(type), "%s", try_init(plain(type)));
  say("driver", "%s", try_init(plain(IBV_QPT_DRIVER)));
  ibv_destroy_cq(cq);
}

#define TRY_CAP(name, field, value) \
  do { \
    struct ibv_qp_init_attr init = plain(IBV_QPT_RC); \
    init.cap.field = (value); \
    say(name, "%s", try_init(init)); \
  } while (0)

static void limits(void) {
  if (!have_cq()) return;
  const struct ibv_device_attr *a = &suite.attr;
  TRY_CAP("send_wr_zero", max_send_wr, 0);
  TRY_CAP("recv_wr_zero", max_recv_wr, 0);
  TRY_CAP("send_sge_zero", max_send_sge, 0);
  TRY_CAP("recv_sge_zero", max_recv_sge, 0);
  TRY_CAP("send_wr_above_max", max_send_wr, a->max_qp_wr + 1);
  TRY_CAP("recv_wr_above_max", max_recv_wr, a->max_qp_wr + 1);
  TRY_CAP("send_wr_huge", max_send_wr, UINT32_MAX);
  TRY_CAP("recv_wr_huge", max_recv_wr, UINT32_MAX);
  TRY_CAP("send_sge_max", max_send_sge, a->max_sge);
  TRY_CAP("recv_sge_max", max_recv_sge, a->max_sge);
  TRY_CAP("send_sge_above_max", max_send_sge, a->max_sge + 1);
  TRY_CAP("recv_sge_above_max", max_recv_sge, a->max_sge + 1);
  TRY_CAP("inline_1", max_inline_data, 1);
  TRY_CAP("inline_64", max_inline_data, 64);
  TRY_CAP("inline_200", max_inline_data, 200);
  TRY_CAP("inline_1_MiB", max_inline_data, 1 << 20);
  struct ibv_qp_init_attr everything_zero = plain(IBV_QPT_RC);
  memset(&everything_zero.cap, 0, sizeof everything_zero.cap);
  say("all_zero", "%s", try_init(everything_zero));
  ibv_destroy_cq(cq);
}

static void fields(void) {
  if (!have_cq()) return;
  struct ibv_qp_init_attr init = plain(IBV_QPT_RC);
  int context;
  init.qp_context = &context;
  struct ibv_qp *qp = ibv_create_qp(suite.pd, &init), *other = ibv_create_qp(suite.pd, &init);
  if (!qp || !other) return say("setup", "%s", errno_name(errno));
  say("context", "%s", yes(qp->qp_context == &context && qp->context == suite.ctx && qp->pd == suite.pd));
  say("queues", "%s", yes(qp->send_cq == cq && qp->recv_cq == cq && !qp->srq));
  say("type_and_state", "%s %s", type_name(qp->qp_type), state_name(qp->state));
  say("numbers_differ", "%s", yes(qp->qp_num != other->qp_num));
  say("number_is_24_bits", "%s", yes(qp->qp_num < 1 << 24 && qp->qp_num > 1));
  ibv_destroy_qp(qp);
  ibv_destroy_qp(other);
  ibv_destroy_cq(cq);
}

// Everything that was set comes back.
static void query(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_qp_attr a;
  struct ibv_qp_init_attr init;
  int mask = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_AV |
             IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN |
             IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_CAP |
             IBV_QP_DEST_QPN | IBV_QP_PATH_MIG_STATE;
  memset(&a, 0xee, sizeof a);
  say("call", "%s", RC(ibv_query_qp(p.a.qp, &a, mask, &init)));
  say("state", "%s %s", state_name(a.qp_state), state_name(a.cur_qp_state));
  say("struct_state", "%s", state_name(p.a.qp->state));
  say("access", "%s", yes(a.qp_access_flags == o.qp_access));
  say("pkey_port", "%d %s", a.pkey_index, yes(a.port_num == suite.port));
  say("mtu", "%d", a.path_mtu);
  say("timers", "timeout=%d retry=%d rnr_retry=%d min_rnr=%d", a.timeout, a.retry_cnt, a.rnr_retry, a.min_rnr_timer);
  say("psn", "0x%x 0x%x", a.rq_psn, a.sq_psn);
  say("rd_atomic", "%d %d", a.max_rd_atomic, a.max_dest_rd_atomic);
  say("dest", "%s", yes(a.dest_qp_num == p.b.qp->qp_num));
  say("cap_enough", "%s", yes(a.cap.max_send_wr >= o.send_wr && a.cap.max_recv_wr >= o.recv_wr && a.cap.max_send_sge >= o.sge && a.cap.max_inline_data >= o.inline_size));
  say("path", "port=%s global=%d sl=%d hops=%d", yes(a.ah_attr.port_num == suite.port), a.ah_attr.is_global, a.ah_attr.sl, a.ah_attr.is_global ? a.ah_attr.grh.hop_limit : 64);
  say("path_gid", "%s", yes(!a.ah_attr.is_global || (!memcmp(&a.ah_attr.grh.dgid, &suite.gid, 16) && a.ah_attr.grh.sgid_index == suite.gid_index)));
  say("mig_state", "%s", a.path_mig_state == IBV_MIG_MIGRATED ? "MIGRATED" : a.path_mig_state == IBV_MIG_REARM ? "REARM" : "ARMED");
  say("init", "%s", yes(init.send_cq == p.a.send && init.recv_cq == p.a.recv && init.qp_type == IBV_QPT_RC && !init.srq && !init.sq_sig_all));
  say("init_cap_same", "%s", yes(!memcmp(&init.cap, &a.cap, sizeof a.cap)));
  pair_close(&p);
}

static void query_fresh(void) {
  if (!have_cq()) return;
  struct ibv_qp_init_attr init = plain(IBV_QPT_RC), got;
  struct ibv_qp_attr a;
  init.sq_sig_all = 1;
  struct ibv_qp *qp = ibv_create_qp(suite.pd, &init);
  if (!qp) return say("setup", "%s", errno_name(errno));
  say("call", "%s", RC(ibv_query_qp(qp, &a, IBV_QP_STATE | IBV_QP_CAP, &got)));
  say("state", "%s", state_name(a.qp_state));
  say("sig_all", "%d", got.sq_sig_all);
  say("all_bits", "%s", RC(ibv_query_qp(qp, &a, 0x1fffff, &got)));
  say("unknown_bit", "%s", RC(ibv_query_qp(qp, &a, 1 << 30, &got)));
  ibv_destroy_qp(qp);
  ibv_destroy_cq(cq);
}

// One attribute with a value of its own; the transition's others are right. The state must stay if it fails.
typedef void set_value(struct ibv_qp_attr *attr);
static void value(const char *name, enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int more, set_value *set) {
  struct options o = defaults(type);
  struct ibv_qp *qp = make_qp(suite.pd, cq, cq, &o);
  if (!qp) return say(name, "setup: %s", errno_name(errno));
  int failed = walk(qp, &o, qp->qp_num, from);
  struct ibv_qp_attr attr = full_attr(&o, qp->qp_num);
  attr.qp_state = to;
  set(&attr);
  if (failed) say(name, "setup: %s", rc(failed));
  else {
    const char *answer = RC(ibv_modify_qp(qp, &attr, IBV_QP_STATE | required(type, from, to) | more));
    enum ibv_qp_state after = state_of(qp);
    say(name, "%s%s", answer, after == (strcmp(answer, "ok") ? from : to) ? "" : text(", then %s", state_name(after)));
  }
  ibv_destroy_qp(qp);
}

#define SETTER(name, statement) \
  static void name(struct ibv_qp_attr *a) { statement; }
SETTER(port_0, a->port_num = 0)
SETTER(port_99, a->port_num = 99)
SETTER(pkey_max, a->pkey_index = 0xffff)
SETTER(access_unknown, a->qp_access_flags = 1 << 16)
SETTER(access_local, a->qp_access_flags = IBV_ACCESS_LOCAL_WRITE)
SETTER(mtu_0, a->path_mtu = 0)
SETTER(mtu_6, a->path_mtu = 6)
SETTER(mtu_max, a->path_mtu = suite.port_attr.max_mtu)
SETTER(mtu_256, a->path_mtu = IBV_MTU_256)
SETTER(dest_25_bits, a->dest_qp_num = 1 << 24 | 5)
SETTER(dest_nobody, a->dest_qp_num = 0xfffffe)
SETTER(psn_25_bits, a->rq_psn = 1 << 24 | 7)
SETTER(sq_psn_25_bits, a->sq_psn = 1 << 24 | 7)
SETTER(dest_rd_255, a->max_dest_rd_atomic = 255)
SETTER(dest_rd_0, a->max_dest_rd_atomic = 0)
SETTER(rd_255, a->max_rd_atomic = 255)
SETTER(rd_0, a->max_rd_atomic = 0)
SETTER(rnr_timer_32, a->min_rnr_timer = 32)
SETTER(timeout_32, a->timeout = 32)
SETTER(timeout_0, a->timeout = 0)
SETTER(retry_8, a->retry_cnt = 8)
SETTER(rnr_retry_8, a->rnr_retry = 8)
SETTER(gid_index_200, a->ah_attr.is_global = 1; a->ah_attr.grh.sgid_index = 200)
SETTER(no_grh, a->ah_attr.is_global = 0)
SETTER(path_port_0, a->ah_attr.port_num = 0)
SETTER(path_port_99, a->ah_attr.port_num = 99)
SETTER(sl_16, a->ah_attr.sl = 16)
SETTER(cur_right, a->cur_qp_state = IBV_QPS_RTR)
SETTER(cur_wrong, a->cur_qp_state = IBV_QPS_INIT)
SETTER(cur_99, a->cur_qp_state = 99)
SETTER(state_99, a->qp_state = 99)
SETTER(state_unknown, a->qp_state = IBV_QPS_UNKNOWN)

static void values(void) {
  const enum ibv_qp_state reset = IBV_QPS_RESET, init = IBV_QPS_INIT, rtr = IBV_QPS_RTR, rts = IBV_QPS_RTS;
  if (!have_cq()) return;
  value("port_0", IBV_QPT_RC, reset, init, 0, port_0);
  value("port_99", IBV_QPT_RC, reset, init, 0, port_99);
  value("pkey_index_65535", IBV_QPT_RC, reset, init, 0, pkey_max);
  value("access_unknown", IBV_QPT_RC, reset, init, 0, access_unknown);
  value("access_local_write", IBV_QPT_RC, reset, init, 0, access_local);
  value("mtu_0", IBV_QPT_RC, init, rtr, 0, mtu_0);
  value("mtu_6", IBV_QPT_RC, init, rtr, 0, mtu_6);
  value("mtu_256", IBV_QPT_RC, init, rtr, 0, mtu_256);
  value("mtu_max", IBV_QPT_RC, init, rtr, 0, mtu_max);
  value("dest_25_bits", IBV_QPT_RC, init, rtr, 0, dest_25_bits);
  value("dest_nobody", IBV_QPT_RC, init, rtr, 0, dest_nobody);
  value("rq_psn_25_bits", IBV_QPT_RC, init, rtr, 0, psn_25_bits);
  value("max_dest_rd_atomic_255", IBV_QPT_RC, init, rtr, 0, dest_rd_255);
  value("max_dest_rd_atomic_0", IBV_QPT_RC, init, rtr, 0, dest_rd_0);
  value("min_rnr_timer_32", IBV_QPT_RC, init, rtr, 0, rnr_timer_32);
  value("gid_index_200", IBV_QPT_RC, init, rtr, 0, gid_index_200);
  value("no_grh", IBV_QPT_RC, init, rtr, 0, no_grh);
  value("path_port_0", IBV_QPT_RC, init, rtr, 0, path_port_0);
  value("path_port_99", IBV_QPT_RC, init, rtr, 0, path_port_99);
  value("sl_16", IBV_QPT_RC, init, rtr, 0, sl_16);
  value("sq_psn_25_bits", IBV_QPT_RC, rtr, rts, 0, sq_psn_25_bits);
  value("max_rd_atomic_255", IBV_QPT_RC, rtr, rts, 0, rd_255);
  value("max_rd_atomic_0", IBV_QPT_RC, rtr, rts, 0, rd_0);
  value("timeout_32", IBV_QPT_RC, rtr, rts, 0, timeout_32);
  value("timeout_0", IBV_QPT_RC, rtr, rts, 0, timeout_0);
  value("retry_8", IBV_QPT_RC, rtr, rts, 0, retry_8);
  value("rnr_retry_8", IBV_QPT_RC, rtr, rts, 0, rnr_retry_8);
  value("cur_state_right", IBV_QPT_RC, rtr, rts, IBV_QP_CUR_STATE, cur_right);
  value("cur_state_wrong", IBV_QPT_RC, rtr, rts, IBV_QP_CUR_STATE, cur_wrong);
  value("cur_state_99", IBV_QPT_RC, rtr, rts, IBV_QP_CUR_STATE, cur_99);
  value("state_99", IBV_QPT_RC, reset, init, 0, state_99);
  value("state_UNKNOWN", IBV_QPT_RC, reset, init, 0, state_unknown);
  value("unknown_mask_bit", IBV_QPT_RC, reset, init, 1 << 30, rd_0);
  value("ud_pkey_index_65535", IBV_QPT_UD, reset, init, 0, pkey_max);
  value("ud_sq_psn_25_bits", IBV_QPT_UD, rtr, rts, 0, sq_psn_25_bits);
  ibv_destroy_cq(cq);
}

static void no_state(void) {
  if (!have_cq()) return;
  struct options o = defaults(IBV_QPT_RC);
  struct ibv_qp *qp = make_qp(suite.pd, cq, cq, &o);
  struct ibv_qp_attr attr = full_attr(&o, 0);
  if (!qp) return say("setup", "%s", errno_name(errno));
  say("empty_mask_reset", "%s", RC(ibv_modify_qp(qp, &attr, 0)));
  walk(qp, &o, qp->qp_num, IBV_QPS_INIT);
  say("empty_mask_init", "%s", RC(ibv_modify_qp(qp, &attr, 0)));
  say("access_alone_init", "%s", RC(ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS)));
  step(qp, &o, qp->qp_num, IBV_QPS_INIT, IBV_QPS_RTR);
  say("access_alone_rtr", "%s", RC(ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS)));
  step(qp, &o, qp->qp_num, IBV_QPS_RTR, IBV_QPS_RTS);
  say("access_alone_rts", "%s", RC(ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS)));
  say("timer_alone_rts", "%s", RC(ibv_modify_qp(qp, &attr, IBV_QP_MIN_RNR_TIMER)));
  say("mtu_alone_rts", "%s", RC(ibv_modify_qp(qp, &attr, IBV_QP_PATH_MTU)));
  ibv_destroy_qp(qp);
  ibv_destroy_cq(cq);
}

// Calls a device may leave out.
static void optional(void) {
  if (!have_cq()) return;
  struct options o = defaults(IBV_QPT_RC);
  struct ibv_qp *qp = make_qp(suite.pd, cq, cq, &o);
  if (!qp) return say("setup", "%s", errno_name(errno));
  struct ibv_ece ece = {0};
  struct ibv_qp_rate_limit_attr rate = {.rate_limit = 1000};
  struct ibv_wq_init_attr wq_attr = {.wq_type = IBV_WQT_RQ, .max_wr = 4, .max_sge = 1, .pd = suite.pd, .cq = cq};
  struct ibv_rwq_ind_table_init_attr table_attr = {0};
  struct ibv_wq *wq;
  struct ibv_rwq_ind_table *table;
  struct { struct ibv_flow_attr attr; } rule = {{.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .port = suite.port}};
  struct ibv_flow *flow;
  say("query_ece", "%s", RC(ibv_query_ece(qp, &ece)));
  say("set_ece_nothing", "%s", RC(ibv_set_ece(qp, &ece)));
  ece.vendor_id = 0x15b3;
  say("set_ece", "%s", RC(ibv_set_ece(qp, &ece)));
  ece.comp_mask = 1;
  say("set_ece_comp_mask", "%s", RC(ibv_set_ece(qp, &ece)));
  say("data_in_order", "%d", ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0));
  say("rate_limit", "%s", RC(ibv_modify_qp_rate_limit(qp, &rate)));
  say("create_wq", "%s", MADE(wq, ibv_create_wq(suite.ctx, &wq_attr)));
  if (wq) say("destroy_wq", "%s", RC(ibv_destroy_wq(wq)));
  say("create_rwq_ind_table", "%s", MADE(table, ibv_create_rwq_ind_table(suite.ctx, &table_attr)));
  if (table) say("destroy_rwq_ind_table", "%s", RC(ibv_destroy_rwq_ind_table(table)));
  say("create_flow", "%s", MADE(flow, ibv_create_flow(qp, &rule.attr)));
  if (flow) say("destroy_flow", "%s", RC(ibv_destroy_flow(flow)));
  ibv_destroy_qp(qp);
  ibv_destroy_cq(cq);
}

const struct check qp_attr_checks[] = {{"types", types}, {"limits", limits}, {"fields", fields},
                                       {"query", query}, {"query_fresh", query_fresh}, {"values", values},
                                       {"no_state", no_state}, {"optional", optional}, {0}};
