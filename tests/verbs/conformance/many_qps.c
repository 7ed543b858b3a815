// Many queue pairs at a time, and threads.
#include "check.h"

#include <pthread.h>

enum { PAIRS = 100, MESSAGES = 4 };

// All on one completion queue; per queue pair, completions are in the order of the requests.
static void one_cq(void) {
  static struct ibv_qp *a[PAIRS], *b[PAIRS];
  struct ibv_cq *cq = ibv_create_cq(suite.ctx, 2 * PAIRS * MESSAGES, NULL, NULL, 0);
  struct options o = defaults(IBV_QPT_RC);
  uint8_t *buf = make_buffer(8192);
  struct ibv_mr *mr = ibv_reg_mr(suite.pd, buf, 8192, ALL_ACCESS);
  int pairs = 0, connected = 0, posted = 0, failures = 0;
  for (; cq && pairs < PAIRS; pairs++) {
    a[pairs] = make_qp(suite.pd, cq, cq, &o);
    b[pairs] = make_qp(suite.pd, cq, cq, &o);
    if (!a[pairs] || !b[pairs]) break;
    connected += !walk(a[pairs], &o, b[pairs]->qp_num, IBV_QPS_RTS) && !walk(b[pairs], &o, a[pairs]->qp_num, IBV_QPS_RTS);
  }
  say("pairs", "%d", pairs);
  say("connected", "%d", connected);
  for (int m = 0; m < MESSAGES; m++)
    for (int i = 0; i < pairs; i++) {
      struct side left = {.qp = a[i], .mr = mr, .buf = buf}, right = {.qp = b[i], .mr = mr, .buf = buf};
      posted += !post_recv(&right, i * MESSAGES + m, 4096, 100);
      posted += !post_send(&left, i * MESSAGES + m, IBV_SEND_SIGNALED, 0, 64);
    }
  say("posted", "%d", posted);
  static int next_send[PAIRS], next_receive[PAIRS];
  int completed = 0, disorder = 0;
  struct ibv_wc wc;
  for (; completed < posted && next_wc(cq, &wc, LONG); completed++) {
    int i = wc.wr_id / MESSAGES, m = wc.wr_id % MESSAGES;
    bool receive = wc.opcode & IBV_WC_RECV;
    failures += wc.status != IBV_WC_SUCCESS;
    disorder += (receive ? next_receive : next_send)[i]++ != m;
    disorder += wc.qp_num != (receive ? b : a)[i]->qp_num;
  }
  say("completed", "%d", completed);
  say("failures", "%d", failures);
  say("out_of_order", "%d", disorder);
  int undestroyed = 0;
  for (int i = 0; i < pairs; i++) undestroyed += (ibv_destroy_qp(a[i]) != 0) + (ibv_destroy_qp(b[i]) != 0);
  say("undestroyed", "%d", undestroyed);
  if (cq) ibv_destroy_cq(cq);
  ibv_dereg_mr(mr);
  free_buffer(buf, 8192);
}

enum { THREADS = 4, ROUNDS = 100 };

struct worker {
  struct pair p;
  int good;
};

static void *work(void *argument) {
  struct worker *w = argument;
  for (int i = 0; i < ROUNDS; i++) {
    struct ibv_wc wc;
    fill(w->p.a.buf, 2000, i);
    bool ok = !post_recv(&w->p.b, i, 0, 2000) && !post_send(&w->p.a, i, IBV_SEND_SIGNALED, 0, 2000);
    ok = ok && next_wc(w->p.a.send, &wc, LONG) && wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i;
    ok = ok && next_wc(w->p.b.recv, &wc, LONG) && wc.status == IBV_WC_SUCCESS && wc.byte_len == 2000;
    w->good += ok && filled(w->p.b.buf, 2000, i);
    if (!ok) break;
  }
  return NULL;
}

static void threads(void) {
  static struct worker workers[THREADS];
  pthread_t ids[THREADS];
  struct options o = defaults(IBV_QPT_RC);
  for (int i = 0; i < THREADS; i++)
    if (!pair_open(&workers[i].p, &o)) return;
  for (int i = 0; i < THREADS; i++) pthread_create(&ids[i], NULL, work, &workers[i]);
  int good = 0;
  for (int i = 0; i < THREADS; i++) {
    pthread_join(ids[i], NULL);
    good += workers[i].good;
    pair_close(&workers[i].p);
  }
  say(NULL, "%d of %d", good, THREADS * ROUNDS);
}

// Two threads post to the same queue pair, which is allowed.
struct poster {
  struct pair *p;
  int posted;
};

static void *post_many(void *argument) {
  struct poster *poster = argument;
  for (int i = 0; i < 100; i++) {
    struct ibv_sge sge = part_of(&poster->p->a, 0, 16);
    struct ibv_send_wr wr = rdma_wr(&sge, IBV_WR_RDMA_WRITE, i, at(&poster->p->b, 0), poster->p->b.mr->rkey);
    poster->posted += !post_wr(poster->p->a.qp, &wr);
  }
  return NULL;
}

static void shared_qp(void) {
  struct pair p;
  struct options o = defaults(IBV_QPT_RC);
  o.send_wr = o.cqe = 256;
  if (!pair_open(&p, &o)) return;
  struct poster posters[2] = {{.p = &p}, {.p = &p}};
  pthread_t ids[2];
  for (int i = 0; i < 2; i++) pthread_create(&ids[i], NULL, post_many, &posters[i]);
  for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
  int completed = 0, failures = 0;
  struct ibv_wc wc;
  for (; completed < posters[0].posted + posters[1].posted && next_wc(p.a.send, &wc, LONG); completed++) failures += wc.status != IBV_WC_SUCCESS;
  say(NULL, "posted %d, completed %d, failures %d", posters[0].posted + posters[1].posted, completed, failures);
  pair_close(&p);
}

// Numbers are not given out again at once: a late packet must not find a newcomer.
static void numbers(void) {
  struct ibv_cq *cq = ibv_create_cq(suite.ctx, 4, NULL, NULL, 0);
  struct options o = defaults(IBV_QPT_RC);
  uint32_t last = 0;
  int repeated = 0;
  for (int i = 0; i < 20; i++) {
    struct ibv_qp *qp = make_qp(suite.pd, cq, cq, &o);
    if (!qp) return say("setup", "%s", errno_name(errno));
    repeated += qp->qp_num == last;
    last = qp->qp_num;
    ibv_destroy_qp(qp);
  }
  say("repeated_at_once", "%s", yes(repeated));
  ibv_destroy_cq(cq);
}

const struct check many_qps_checks[] = {{"one_cq", one_cq}, {"threads", threads}, {"shared_qp", shared_qp}, {"numbers", numbers}, {0}};
