// In which order things may be destroyed: what is in use stays.
#include "check.h"

static void order(void) {
  struct ibv_pd *pd = ibv_alloc_pd(suite.ctx);
  struct ibv_comp_channel *channel = ibv_create_comp_channel(suite.ctx);
  struct ibv_cq *cq = ibv_create_cq(suite.ctx, 16, NULL, channel, 0);
  struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
  struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
  struct options o = defaults(IBV_QPT_RC);
  o.srq = srq;
  struct ibv_qp *qp = make_qp(pd, cq, cq, &o);
  if (!qp) return say("setup", "%s", errno_name(errno));
  say("pd_with_all", "%s", RC(ibv_dealloc_pd(pd)));
  say("cq_with_qp", "%s", RC(ibv_destroy_cq(cq)));
  say("srq_with_qp", "%s", RC(ibv_destroy_srq(srq)));
  say("channel_with_cq", "%s", RC(ibv_destroy_comp_channel(channel)));
  say("qp", "%s", RC(ibv_destroy_qp(qp)));
  say("pd_with_srq", "%s", RC(ibv_dealloc_pd(pd)));
  say("srq", "%s", RC(ibv_destroy_srq(srq)));
  say("pd", "%s", RC(ibv_dealloc_pd(pd)));
  say("cq", "%s", RC(ibv_destroy_cq(cq)));
  say("channel", "%s", RC(ibv_destroy_comp_channel(channel)));
}

static void pd_with_ah(void) {
  struct ibv_pd *pd = ibv_alloc_pd(suite.ctx);
  struct ibv_ah_attr path = own_path();
  struct ibv_ah *ah = ibv_create_ah(pd, &path);
  if (!ah) return say("setup", "%s", errno_name(errno));
  say("pd", "%s", RC(ibv_dealloc_pd(pd)));
  say("ah", "%s", RC(ibv_destroy_ah(ah)));
  say("pd_then", "%s", RC(ibv_dealloc_pd(pd)));
}

static void pd_with_mr(void) {
  struct ibv_pd *pd = ibv_alloc_pd(suite.ctx);
  uint8_t *buf = make_buffer(4096);
  struct ibv_mr *mr = ibv_reg_mr(pd, buf, 4096, 0);
  if (!mr) return say("setup", "%s", errno_name(errno));
  say("pd", "%s", RC(ibv_dealloc_pd(pd)));
  say("mr", "%s", RC(ibv_dereg_mr(mr)));
  say("pd_then", "%s", RC(ibv_dealloc_pd(pd)));
  free_buffer(buf, 4096);
}

// A region may go while requests that name it are outstanding; they fail then.
static void mr_in_use(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  struct ibv_mr *other = ibv_reg_mr(p.pd, p.a.buf, 4096, ALL_ACCESS);
  post_recv(&p.b, 1, 0, 100);
  say("dereg", "%s", RC(ibv_dereg_mr(p.b.mr)));
  p.b.mr = NULL;
  post_send(&p.a, 2, IBV_SEND_SIGNALED, 0, 10);
  say("send", "%s", completions(p.a.send, 1, LONG));
  say("receive", "%s", completions(p.b.recv, 1, SHORT));
  ibv_dereg_mr(other);
  pair_close(&p);
}

// The memory is unmapped, the region stays: devices hold the pages.
static void unmapped_memory(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  uint8_t *buf = make_buffer(4096);
  fill(buf, 4096, 1);
  struct ibv_mr *mr = ibv_reg_mr(p.pd, buf, 4096, ALL_ACCESS);
  uint64_t address = (uintptr_t)buf;
  free_buffer(buf, 4096);
  struct ibv_sge sge = part_of(&p.a, 0, 4096);
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_READ, 1, address, mr->rkey);
  post_wr(p.a.qp, &wr);
  const char *got = completions(p.a.send, 1, LONG);
  say("read", "%s, data %s", got, filled(p.a.buf, 4096, 1) ? "ok" : "wrong");
  say("dereg", "%s", RC(ibv_dereg_mr(mr)));
  pair_close(&p);
}

static void busy_qp(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  for (int i = 0; i < 8; i++) post_send(&p.a, i, IBV_SEND_SIGNALED, 0, 1000); // none has a receive
  say("qp", "%s", RC(ibv_destroy_qp(p.a.qp)));
  p.a.qp = NULL;
  say("cq", "%s", RC(ibv_destroy_cq(p.a.send)));
  p.a.send = NULL;
  pair_close(&p);
}

// Two contexts of one process: objects of the one and the other connect, but do not mix.
static void two_contexts(void) {
  struct ibv_context *ctx = ibv_open_device(suite.device);
  struct ibv_pd *pd = ctx ? ibv_alloc_pd(ctx) : NULL;
  struct ibv_cq *own = ctx ? ibv_create_cq(ctx, 16, NULL, NULL, 0) : NULL, *foreign = ibv_create_cq(suite.ctx, 16, NULL, NULL, 0);
  struct options o = defaults(IBV_QPT_RC);
  if (!pd || !own || !foreign) return say("setup", "%s", errno_name(errno));
  struct ibv_qp *a = make_qp(pd, own, own, &o), *b = make_qp(suite.pd, foreign, foreign, &o);
  uint8_t *buf = make_buffer(8192);
  struct side left = {.qp = a, .buf = buf, .mr = ibv_reg_mr(pd, buf, 8192, ALL_ACCESS)};
  struct side right = {.qp = b, .buf = buf, .mr = ibv_reg_mr(suite.pd, buf, 8192, ALL_ACCESS)};
  say("connect", "%s %s", rc(walk(a, &o, b->qp_num, IBV_QPS_RTS)), rc(walk(b, &o, a->qp_num, IBV_QPS_RTS)));
  post_recv(&right, 1, 4096, 100);
  post_send(&left, 2, IBV_SEND_SIGNALED, 0, 50);
  say("send", "%s", completions(own, 1, LONG));
  say("receive", "%s", completions(foreign, 1, LONG));
  ibv_destroy_qp(a);
  ibv_destroy_qp(b);
  ibv_dereg_mr(left.mr);
  ibv_dereg_mr(right.mr);
  ibv_destroy_cq(own);
  ibv_destroy_cq(foreign);
  ibv_dealloc_pd(pd);
  say("close", "%s", RC(ibv_close_device(ctx)));
  free_buffer(buf, 8192);
}

const struct check lifetime_checks[] = {{"order", order}, {"pd_with_ah", pd_with_ah}, {"pd_with_mr", pd_with_mr},
                                        {"mr_in_use", mr_in_use}, {"unmapped_memory", unmapped_memory},
                                        {"busy_qp", busy_qp}, {"two_contexts", two_contexts}, {0}};
