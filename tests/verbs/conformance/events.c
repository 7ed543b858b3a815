// Completion channels and asynchronous events.
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

static const char *got; // what completed, taken before what is to be seen afterwards

static bool readable(int fd, int ms) {
  struct pollfd one = {.fd = fd, .events = POLLIN};
  return poll(&one, 1, ms) > 0;
}

// The next completion event and whose it is; acknowledged.
static const char *cq_event(struct ibv_comp_channel *channel, struct ibv_cq *expected, int ms) {
  struct ibv_cq *cq;
  void *context;
  if (!readable(channel->fd, ms)) return "none";
  errno = 0;
  if (ibv_get_cq_event(channel, &cq, &context)) return text("-1/%s", errno_name(errno));
  ibv_ack_cq_events(cq, 1);
  return cq == expected && context == cq->cq_context ? "same" : "different";
}

struct watched {
  struct ibv_comp_channel *channel;
  struct pair p;
};

static bool watched_open(struct watched *w, uint8_t rnr_retry) {
  struct options o = defaults(IBV_QPT_RC);
  w->channel = ibv_create_comp_channel(suite.ctx);
  o.channel = w->channel;
  o.rnr_retry = rnr_retry;
  if (w->channel && pair_open(&w->p, &o)) return true;
  if (!w->channel) say("setup", "%s", errno_name(errno));
  return false;
}

static void watched_close(struct watched *w) {
  pair_close(&w->p);
  ibv_destroy_comp_channel(w->channel);
}

// One message to b; waits for a's completion so that b's is there, too.
static void message(struct watched *w, unsigned flags) {
  struct ibv_wc wc;
  post_recv(&w->p.b, 1, 0, 100);
  post_send(&w->p.a, 2, IBV_SEND_SIGNALED | flags, 0, 10);
  next_wc(w->p.a.send, &wc, LONG);
}

// Takes completions and events that are there.
static void quiet(struct watched *w, struct ibv_cq *cq) {
  drain(cq);
  while (readable(w->channel->fd, 0)) cq_event(w->channel, cq, 0);
}

static void channel(void) {
  struct ibv_comp_channel *c;
  say("create", "%s", MADE(c, ibv_create_comp_channel(suite.ctx)));
  if (!c) return;
  say("fields", "%s", yes(c->context == suite.ctx && c->fd >= 0 && !c->refcnt));
  say("not_readable", "%s", yes(!readable(c->fd, 0)));
  struct ibv_cq *cq;
  void *context;
  fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
  say("nonblocking_get", "%s", RC(ibv_get_cq_event(c, &cq, &context)));
  say("destroy", "%s", RC(ibv_destroy_comp_channel(c)));
}

static void arm(void) {
  struct watched w;
  if (!watched_open(&w, 7)) return;
  struct ibv_cq *cq = w.p.b.recv;
  message(&w, 0);
  say("unarmed", "%s", cq_event(w.channel, cq, SHORT));
  completions(cq, 1, LONG);
  say("request", "%s", RC(ibv_req_notify_cq(cq, 0)));
  say("nothing_yet", "%s", cq_event(w.channel, cq, SHORT));
  message(&w, 0);
  say("armed", "%s", cq_event(w.channel, cq, LONG));
  message(&w, 0);
  say("once", "%s", cq_event(w.channel, cq, SHORT));
  ibv_req_notify_cq(cq, 0);
  say("armed_after_completion", "%s", cq_event(w.channel, cq, SHORT));
  message(&w, 0);
  say("then_next", "%s", cq_event(w.channel, cq, SHORT));
  ibv_req_notify_cq(cq, 0);
  ibv_req_notify_cq(cq, 0);
  message(&w, 0);
  message(&w, 0);
  say("armed_twice", "%s", cq_event(w.channel, cq, LONG));
  say("armed_twice_again", "%s", cq_event(w.channel, cq, SHORT));
  say("completions", "%s", completions(cq, 5, LONG));
  watched_close(&w);
}

static void send_side(void) {
  struct watched w;
  if (!watched_open(&w, 7)) return;
  struct ibv_cq *cq = w.p.a.send;
  ibv_req_notify_cq(cq, 0);
  post_recv(&w.p.b, 1, 0, 100);
  post_recv(&w.p.b, 1, 0, 100);
  post_send(&w.p.a, 2, 0, 0, 10);
  say("unsignaled", "%s", cq_event(w.channel, cq, SHORT));
  post_send(&w.p.a, 3, IBV_SEND_SIGNALED, 0, 10);
  say("signaled", "%s", cq_event(w.channel, cq, LONG));
  say("completion", "%s", completions(cq, 1, LONG));
  ibv_req_notify_cq(cq, 1);
  post_recv(&w.p.b, 1, 0, 100);
  post_send(&w.p.a, 4, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED, 0, 10);
  say("solicited_is_for_receives", "%s", cq_event(w.channel, cq, SHORT));
  watched_close(&w);
}

static void solicited(void) {
  struct watched w;
  if (!watched_open(&w, 7)) return;
  struct ibv_cq *cq = w.p.b.recv;
  say("request", "%s", RC(ibv_req_notify_cq(cq, 1)));
  message(&w, 0);
  say("unsolicited", "%s", cq_event(w.channel, cq, SHORT));
  message(&w, IBV_SEND_SOLICITED);
  say("solicited", "%s", cq_event(w.channel, cq, 3000));
  quiet(&w, cq);
  ibv_req_notify_cq(cq, 1);
  ibv_req_notify_cq(cq, 0);
  message(&w, 0);
  say("all_after_solicited", "%s", cq_event(w.channel, cq, 3000));
  quiet(&w, cq);
  ibv_req_notify_cq(cq, 0);
  ibv_req_notify_cq(cq, 1);
  message(&w, 0);
  say("solicited_after_all", "%s", cq_event(w.channel, cq, 3000));
  quiet(&w, cq);
  ibv_req_notify_cq(cq, 1);
  struct ibv_sge sge = part_of(&w.p.a, 0, 10);
  struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE_WITH_IMM, 5, at(&w.p.b, 0), w.p.b.mr->rkey);
  wr.send_flags |= IBV_SEND_SOLICITED;
  post_recv(&w.p.b, 1, 0, 0);
  post_wr(w.p.a.qp, &wr);
  say("write_imm", "%s", cq_event(w.channel, cq, 3000));
  watched_close(&w);
}

// An unsuccessful completion counts as solicited.
static void solicited_error(void) {
  struct watched w;
  if (!watched_open(&w, 7)) return;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  post_recv(&w.p.b, 1, 0, 100);
  ibv_req_notify_cq(w.p.b.recv, 1);
  ibv_modify_qp(w.p.b.qp, &attr, IBV_QP_STATE);
  say("flushed_receive", "%s", cq_event(w.channel, w.p.b.recv, 3000));
  say("completion", "%s", completions(w.p.b.recv, 1, 3000));
  watched_close(&w);
  if (!watched_open(&w, 0)) return;
  ibv_req_notify_cq(w.p.a.send, 1);
  post_send(&w.p.a, 1, IBV_SEND_SIGNALED, 0, 10);
  say("failed_send", "%s", cq_event(w.channel, w.p.a.send, LONG));
  watched_close(&w);
}

struct destruction {
  pthread_t thread;
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  volatile int done;
};

static void *destroy(void *argument) {
  struct destruction *d = argument;
  if (d->cq) ibv_destroy_cq(d->cq);
  if (d->qp) ibv_destroy_qp(d->qp);
  d->done = 1;
  return NULL;
}

// The destruction of a queue waits until all its events are acknowledged.
static void unacknowledged(void) {
  struct ibv_comp_channel *c = ibv_create_comp_channel(suite.ctx);
  struct destruction d = {.cq = ibv_create_cq(suite.ctx, 16, NULL, c, 0)};
  struct options o = defaults(IBV_QPT_RC);
  struct ibv_qp *qp = d.cq ? make_qp(suite.pd, d.cq, d.cq, &o) : NULL;
  if (!qp) return say("setup", "%s", errno_name(errno));
  struct ibv_recv_wr receive = {.wr_id = 1}, *bad;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
  walk(qp, &o, qp->qp_num, IBV_QPS_RTS);
  ibv_req_notify_cq(d.cq, 0);
  ibv_post_recv(qp, &receive, &bad);
  ibv_modify_qp(qp, &attr, IBV_QP_STATE);
  struct ibv_cq *cq = NULL;
  void *context;
  if (readable(c->fd, 3000)) ibv_get_cq_event(c, &cq, &context);
  ibv_destroy_qp(qp);
  say("event", "%s", cq == d.cq ? "same" : "none");
  pthread_create(&d.thread, NULL, destroy, &d);
  pause_ms(SHORT);
  say("destroyed_before", "%s", yes(d.done));
  if (cq) ibv_ack_cq_events(cq, 1);
  pthread_join(d.thread, NULL);
  say("destroyed_after", "%s", yes(d.done));
  say("channel", "%s", RC(ibv_destroy_comp_channel(c)));
}

// Events that nobody has read go with their queue.
static void unread(void) {
  struct watched w;
  if (!watched_open(&w, 7)) return;
  ibv_req_notify_cq(w.p.b.recv, 0);
  message(&w, 0);
  say("readable", "%s", yes(readable(w.channel->fd, 3000)));
  ibv_destroy_qp(w.p.b.qp);
  w.p.b.qp = NULL;
  say("destroy", "%s", RC(ibv_destroy_cq(w.p.b.recv)));
  w.p.b.recv = NULL;
  say("readable_after", "%s", yes(readable(w.channel->fd, SHORT)));
  watched_close(&w);
}

static void two_queues(void) {
  struct watched w;
  if (!watched_open(&w, 7)) return;
  ibv_req_notify_cq(w.p.b.recv, 0);
  message(&w, 0);
  say("first", "%s", cq_event(w.channel, w.p.b.recv, 3000));
  ibv_req_notify_cq(w.p.a.send, 0);
  message(&w, 0);
  say("second", "%s", cq_event(w.channel, w.p.a.send, 3000));
  say("no_more", "%s", cq_event(w.channel, w.p.a.send, SHORT));
  watched_close(&w);
}

struct waiter {
  struct ibv_comp_channel *channel;
  struct ibv_cq *cq;
  int result;
  volatile int done;
};

static void *wait_for_event(void *argument) {
  struct waiter *w = argument;
  void *context;
  w->result = ibv_get_cq_event(w->channel, &w->cq, &context);
  w->done = 1;
  return NULL;
}

static void blocking(void) {
  struct watched w;
  if (!watched_open(&w, 7)) return;
  struct waiter waiter = {.channel = w.channel};
  pthread_t thread;
  ibv_req_notify_cq(w.p.b.recv, 0);
  pthread_create(&thread, NULL, wait_for_event, &waiter);
  pause_ms(SHORT);
  say("waits", "%s", yes(!waiter.done));
  message(&w, 0);
  for (double end = now_ms() + LONG; !waiter.done && now_ms() < end;) pause_ms(5);
  say("wakes", "%s", yes(waiter.done && !waiter.result && waiter.cq == w.p.b.recv));
  if (!waiter.done) return; // what hangs stays
  pthread_join(thread, NULL);
  ibv_ack_cq_events(waiter.cq, 1);
  watched_close(&w);
}

static void async_nonblocking(void) {
  struct ibv_context *ctx = ibv_open_device(suite.device);
  struct ibv_async_event event;
  if (!ctx) return say("setup", "%s", errno_name(errno));
  fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK);
  say(NULL, "%s", RC(ibv_get_async_event(ctx, &event)));
  ibv_close_device(ctx);
}

// The first message at a queue pair that is in RTR still.
static void comm_est(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  if (!pair_open(&p, &o)) return;
  step(p.b.qp, &o, 0, IBV_QPS_RTS, IBV_QPS_RESET);
  walk(p.b.qp, &o, p.a.qp->qp_num, IBV_QPS_RTR);
  drain_events(suite.ctx);
  post_recv(&p.b, 1, 0, 100);
  post_send(&p.a, 2, IBV_SEND_SIGNALED, 0, 10);
  say("receive", "%s", completions(p.b.recv, 1, LONG));
  say("event", "%s", next_event(suite.ctx, p.b.qp, 1000));
  drain_events(suite.ctx);
  pair_close(&p);
}

// The responder hears of what was refused without a receive being used.
static void refusals(void) {
  static const char *const names[] = {"bad_rkey", "no_access_in_qp", "receive_too_short", "local_failure"};
  for (int i = 0; i < 4; i++) {
    struct pair p;
    struct options o = defaults(IBV_QPT_RC);
    o.qp_access = i == 1 ? 0 : REMOTE_ALL;
    if (!pair_open(&p, &o)) return;
    drain_events(suite.ctx);
    struct ibv_sge sge = part_of(&p.a, 0, 10);
    if (i == 3) sge.lkey ^= 0x5a00;
    struct ibv_send_wr wr = rdma_wr(&sge, i < 2 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, 1, at(&p.b, 0), p.b.mr->rkey ^ (i ? 0 : 0x5a00));
    post_recv(&p.b, 7, 0, 5);
    post_wr(p.a.qp, &wr);
    got = completions(p.a.send, 1, LONG);
    say(names[i], "%s; event %s", got, next_event(suite.ctx, p.b.qp, 1000));
    drain_events(suite.ctx);
    pair_close(&p);
  }
}

// The destruction of a queue pair waits for the acknowledgement of its events.
static void async_unacknowledged(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  struct ibv_async_event event = {0};
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
  if (!pair_open(&p, &o)) return;
  drain_events(suite.ctx);
  struct destruction d = {.qp = p.a.qp};
  ibv_modify_qp(p.a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
  bool came = readable(suite.ctx->async_fd, 3000) && !ibv_get_async_event(suite.ctx, &event);
  say("event", "%s", came ? event_name(event.event_type) : "none");
  pthread_create(&d.thread, NULL, destroy, &d);
  pause_ms(SHORT);
  say("destroyed_before", "%s", yes(d.done));
  if (came) ibv_ack_async_event(&event);
  pthread_join(d.thread, NULL);
  say("destroyed_after", "%s", yes(d.done));
  p.a.qp = NULL;
  pair_close(&p);
}

const struct check events_checks[] = {
    {"channel", channel}, {"arm", arm}, {"send_side", send_side}, {"solicited", solicited},
    {"solicited_error", solicited_error}, {"unacknowledged", unacknowledged}, {"unread", unread},
    {"two_queues", two_queues}, {"blocking", blocking}, {"async_nonblocking", async_nonblocking},
    {"comm_est", comm_est}, {"refusals", refusals}, {"async_unacknowledged", async_unacknowledged}, {0}};
