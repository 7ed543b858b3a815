// Completion queues: sizes, resizing, polling, overflow.
#include "check.h"

static const char *try_create(int cqe, int vector) {
  struct ibv_cq *cq;
  const char *answer = MADE(cq, ibv_create_cq(suite.ctx, cqe, NULL, NULL, vector));
  if (!cq) return answer;
  bool enough = cq->cqe >= cqe;
  int failed = ibv_destroy_cq(cq);
  if (failed) return text("ok, destroy %s", rc(failed));
  return enough ? "ok" : "ok, too few entries";
}

static void create(void) {
  say("one", "%s", try_create(1, 0));
  say("hundred", "%s", try_create(100, 0));
  say("max", "%s", try_create(suite.attr.max_cqe, 0));
  say("zero", "%s", try_create(0, 0));
  say("negative", "%s", try_create(-1, 0));
  say("above_max", "%s", try_create(suite.attr.max_cqe + 1, 0));
  say("int_max", "%s", try_create(INT32_MAX, 0));
  say("last_vector", "%s", try_create(16, suite.ctx->num_comp_vectors - 1));
  say("vector_beyond", "%s", try_create(16, suite.ctx->num_comp_vectors));
  say("vector_negative", "%s", try_create(16, -1));
}

static void fields(void) {
  int context;
  struct ibv_comp_channel *channel;
  say("channel", "%s", MADE(channel, ibv_create_comp_channel(suite.ctx)));
  struct ibv_cq *cq = ibv_create_cq(suite.ctx, 10, &context, channel, 0);
  if (!cq) return say("setup", "%s", errno_name(errno));
  say("context", "%s", yes(cq->context == suite.ctx && cq->cq_context == &context));
  say("has_channel", "%s", yes(cq->channel == channel));
  say("channel_busy", "%s", RC(ibv_destroy_comp_channel(channel)));
  say("destroy", "%s", RC(ibv_destroy_cq(cq)));
  say("channel_free", "%s", RC(ibv_destroy_comp_channel(channel)));
}

static void empty(void) {
  struct ibv_wc wc[4];
  struct ibv_cq *cq = ibv_create_cq(suite.ctx, 4, NULL, NULL, 0);
  if (!cq) return say("setup", "%s", errno_name(errno));
  say("poll", "%d", ibv_poll_cq(cq, 1, wc));
  say("poll_four", "%d", ibv_poll_cq(cq, 4, wc));
  say("poll_none", "%d", ibv_poll_cq(cq, 0, wc));
  say("destroy", "%s", RC(ibv_destroy_cq(cq)));
}

static void resize(void) {
  struct ibv_cq *cq = ibv_create_cq(suite.ctx, 10, NULL, NULL, 0);
  if (!cq) return say("setup", "%s", errno_name(errno));
  say("larger", "%s", RC(ibv_resize_cq(cq, 200)));
  say("larger_entries", "%s", yes(cq->cqe >= 200));
  say("smaller", "%s", RC(ibv_resize_cq(cq, 5)));
  say("smaller_entries", "%s", yes(cq->cqe >= 5));
  say("zero", "%s", RC(ibv_resize_cq(cq, 0)));
  say("negative", "%s", RC(ibv_resize_cq(cq, -1)));
  say("above_max", "%s", RC(ibv_resize_cq(cq, suite.attr.max_cqe + 1)));
  say("still_there", "%s", yes(cq->cqe >= 5));
  ibv_destroy_cq(cq);
}

// Eight completions wait in the queue while it is resized; none may be lost or fall out of order.
static void resize_outstanding(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  o.cqe = 20;
  if (!pair_open(&p, &o)) return;
  for (int i = 1; i <= 8; i++) post_recv(&p.b, i, 0, 64);
  for (int i = 1; i <= 8; i++) post_send(&p.a, i, IBV_SEND_SIGNALED, 0, 10);
  for (double end = now_ms() + 2000; now_ms() < end;) pause_ms(10); // no polling: they are to stay in the queue
  say("below_outstanding", "%s", RC(ibv_resize_cq(p.a.send, 4)));
  say("larger", "%s", RC(ibv_resize_cq(p.a.send, 100)));
  say("completions", "%s", completions(p.a.send, 8, LONG));
  say("receives", "%s", completions(p.b.recv, 8, LONG));
  pair_close(&p);
}

// More completions than entries: an error event, and the queue pairs that use the queue are of no use any more.
static void overflow(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  o.send_wr = o.recv_wr = 200;
  o.cqe = 4;
  if (!pair_open(&p, &o)) return;
  drain_events(suite.ctx);
  int posted = 0, more = p.a.send->cqe + 8;
  if (more > 200) more = 200;
  // Writes of nothing: they complete at the sender alone.
  for (; posted < more; posted++) {
    struct ibv_send_wr wr = rdma_wr(NULL, IBV_WR_RDMA_WRITE, posted, at(&p.b, 0), p.b.mr->rkey);
    wr.num_sge = 0;
    if (post_wr(p.a.qp, &wr)) break;
  }
  say("posted_all", "%s", yes(posted == more));
  pause_ms(1500);
  struct ibv_wc wc;
  int good = 0, bad = 0, last;
  while ((last = ibv_poll_cq(p.a.send, 1, &wc)) > 0 && good + bad < 1000) wc.status == IBV_WC_SUCCESS ? good++ : bad++;
  say("poll_at_end", "%s", last < 0 ? "negative" : "0");
  say("completed_no_more_than_entries", "%s", yes(good <= p.a.send->cqe));
  say("some_lost", "%s", yes(good + bad < posted));
  say("event", "%s", next_event(suite.ctx, p.a.send, 1000));
  const char *event;
  bool fatal = false;
  while (strcmp(event = next_event(suite.ctx, p.a.qp, 300), "none")) fatal |= !strcmp(event, "QP_FATAL same");
  say("qp_fatal_event", "%s", yes(fatal));
  say("qp_state", "%s", state_name(state_of(p.a.qp)));
  drain_events(suite.ctx);
  pair_close(&p);
}

static void shared(void) {
  struct ibv_cq *cq = ibv_create_cq(suite.ctx, 32, NULL, NULL, 0);
  struct options o = defaults(IBV_QPT_RC);
  struct ibv_qp *a = cq ? make_qp(suite.pd, cq, cq, &o) : NULL, *b = cq ? make_qp(suite.pd, cq, cq, &o) : NULL;
  if (!a || !b) return say("setup", "%s", errno_name(errno));
  uint8_t *buf = make_buffer(4096);
  struct ibv_mr *mr = ibv_reg_mr(suite.pd, buf, 4096, ALL_ACCESS);
  walk(a, &o, b->qp_num, IBV_QPS_RTS);
  walk(b, &o, a->qp_num, IBV_QPS_RTS);
  struct side left = {.qp = a, .mr = mr, .buf = buf}, right = {.qp = b, .mr = mr, .buf = buf};
  post_recv(&right, 2, 0, 100);
  post_send(&left, 1, IBV_SEND_SIGNALED, 200, 100);
  struct ibv_wc wc;
  const char *seen[3] = {"", "nothing", "nothing"}; // in whichever order they came
  for (int i = 0; i < 2 && next_wc(cq, &wc, LONG); i++)
    seen[wc.wr_id] = text("%s qp=%s", describe(&wc), wc.qp_num == (wc.wr_id == 1 ? a : b)->qp_num ? "same" : "different");
  say("send", "%s", seen[1]);
  say("receive", "%s", seen[2]);
  // What a destroyed queue pair left in the queue is not reported.
  post_recv(&right, 3, 0, 100);
  post_send(&left, 4, IBV_SEND_SIGNALED, 200, 100);
  pause_ms(500);
  ibv_destroy_qp(b);
  ibv_destroy_qp(a);
  say("after_destroy_polls", "%s", yes(ibv_poll_cq(cq, 1, &wc) >= 0));
  ibv_destroy_cq(cq);
  ibv_dereg_mr(mr);
  free_buffer(buf, 4096);
}

static void moderation(void) {
  struct ibv_cq *cq = ibv_create_cq(suite.ctx, 4, NULL, NULL, 0);
  struct ibv_modify_cq_attr attr = {.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {.cq_count = 1}};
  if (!cq) return say("setup", "%s", errno_name(errno));
  say(NULL, "%s", RC(ibv_modify_cq(cq, &attr)));
  ibv_destroy_cq(cq);
}

const struct check cq_checks[] = {{"create", create}, {"fields", fields}, {"empty", empty}, {"resize", resize},
                                  {"resize_outstanding", resize_outstanding}, {"overflow", overflow},
                                  {"shared", shared}, {"moderation", moderation}, {0}};
