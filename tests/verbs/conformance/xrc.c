// Extended reliable connections: one receiving queue pair, many shared receive queues behind it.
#include "check.h"

#include <fcntl.h>

static struct ibv_xrcd *open_domain(void) {
  struct ibv_xrcd_init_attr init = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
  return ibv_open_xrcd(suite.ctx, &init);
}

static void domain(void) {
  struct ibv_xrcd *xrcd;
  say("open", "%s", MADE(xrcd, open_domain()));
  if (xrcd) say("close", "%s", RC(ibv_close_xrcd(xrcd)));
}

struct xrc {
  struct ibv_xrcd *xrcd;
  struct ibv_cq *send_cq, *recv_cq;
  struct ibv_srq *srq;
  struct ibv_qp *send, *recv;
  struct side side;
};

static bool xrc_open(struct xrc *x) {
  *x = (struct xrc){.xrcd = open_domain(), .side.buf = make_buffer(4096)};
  if (!x->xrcd) return false;
  x->send_cq = ibv_create_cq(suite.ctx, 16, NULL, NULL, 0);
  x->recv_cq = ibv_create_cq(suite.ctx, 16, NULL, NULL, 0);
  x->side.mr = ibv_reg_mr(suite.pd, x->side.buf, 4096, ALL_ACCESS);
  struct ibv_srq_init_attr_ex srq = {
      .attr = {.max_wr = 16, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = suite.pd, .xrcd = x->xrcd, .cq = x->recv_cq,
      .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ};
  struct ibv_qp_init_attr_ex recv = {.qp_type = IBV_QPT_XRC_RECV, .xrcd = x->xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
  struct ibv_qp_init_attr_ex send = {.qp_type = IBV_QPT_XRC_SEND, .pd = suite.pd, .send_cq = x->send_cq,
                                     .cap = {.max_send_wr = 16, .max_send_sge = 1}, .comp_mask = IBV_QP_INIT_ATTR_PD};
  say("srq", "%s", MADE(x->srq, ibv_create_srq_ex(suite.ctx, &srq)));
  say("recv_qp", "%s", MADE(x->recv, ibv_create_qp_ex(suite.ctx, &recv)));
  say("send_qp", "%s", MADE(x->send, ibv_create_qp_ex(suite.ctx, &send)));
  return x->srq && x->recv && x->send;
}

static void xrc_close(struct xrc *x) {
  if (x->send) ibv_destroy_qp(x->send);
  if (x->recv) ibv_destroy_qp(x->recv);
  if (x->srq) ibv_destroy_srq(x->srq);
  if (x->send_cq) ibv_destroy_cq(x->send_cq);
  if (x->recv_cq) ibv_destroy_cq(x->recv_cq);
  if (x->side.mr) ibv_dereg_mr(x->side.mr);
  if (x->xrcd) ibv_close_xrcd(x->xrcd);
  free_buffer(x->side.buf, 4096);
}

// The receiving side needs what an RC queue pair needs up to RTR, the sending side all.
static int link_up(struct ibv_qp *qp, uint32_t peer, enum ibv_qp_state to) {
  struct options o = defaults(qp->qp_type);
  return walk(qp, &o, peer, to);
}

static void message(void) {
  struct xrc x;
  uint32_t number = 0;
  if (!xrc_open(&x)) {
    say(NULL, "not there");
    xrc_close(&x);
    return;
  }
  say("srq_number", "%s", RC(ibv_get_srq_num(x.srq, &number)));
  say("connect_recv", "%s", rc(link_up(x.recv, x.send->qp_num, IBV_QPS_RTR)));
  say("connect_send", "%s", rc(link_up(x.send, x.recv->qp_num, IBV_QPS_RTS)));
  struct ibv_sge to = part_of(&x.side, 0, 1000), from = part_of(&x.side, 2000, 500);
  struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &to, .num_sge = 1}, *bad;
  struct ibv_send_wr send = {.wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
  send.qp_type.xrc.remote_srqn = number;
  fill(x.side.buf + 2000, 500, 1);
  say("post_receive", "%s", RC(ibv_post_srq_recv(x.srq, &receive, &bad)));
  say("post_send", "%s", RC(post_wr(x.send, &send)));
  say("send", "%s", completions(x.send_cq, 1, LONG));
  const char *got = completions(x.recv_cq, 1, LONG);
  say("receive", "%s, data %s", got, filled(x.side.buf, 500, 1) ? "ok" : "wrong");
  send.qp_type.xrc.remote_srqn = number ^ 0x5a5a;
  post_wr(x.send, &send);
  say("wrong_srq", "%s", completions(x.send_cq, 1, LONG));
  xrc_close(&x);
}

static void open_qp(void) {
  struct ibv_xrcd *xrcd = open_domain();
  struct ibv_qp_open_attr attr = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
                                  .qp_num = 0xfffff0, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV};
  if (!xrcd) return say(NULL, "not there");
  struct ibv_qp *qp;
  say("no_such", "%s", MADE(qp, ibv_open_qp(suite.ctx, &attr)));
  ibv_close_xrcd(xrcd);
}

const struct check xrc_checks[] = {{"domain", domain}, {"message", message}, {"open_qp", open_qp}, {0}};
