// Completions with a time limit, connected pairs of queue pairs, and requests on them.
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <time.h>

double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

void pause_ms(int ms) {
  usleep(ms * 1000);
}

bool next_wc(struct ibv_cq *cq, struct ibv_wc *wc, int ms) {
  double end = now_ms() + ms;
  do {
    if (ibv_poll_cq(cq, 1, wc) > 0) return true;
    usleep(100);
  } while (now_ms() < end);
  return false;
}

const char *describe(const struct ibv_wc *wc) {
  const char *line = text("#%d %s", (int)wc->wr_id, status_name(wc->status));
  if (wc->status != IBV_WC_SUCCESS) return line; // the other fields are undefined
  line = text("#%d %s", (int)wc->wr_id, opcode_name(wc->opcode));
  if (!(wc->opcode & IBV_WC_RECV)) return line;
  line = text("%s len=%u", line, wc->byte_len);
  if (wc->wc_flags & IBV_WC_WITH_IMM) line = text("%s imm=0x%x", line, ntohl(wc->imm_data));
  if (wc->wc_flags & IBV_WC_WITH_INV) line = text("%s inv", line);
  return line;
}

const char *completions(struct ibv_cq *cq, int count, int ms) {
  const char *all = "";
  struct ibv_wc wc;
  for (int i = 0; i < count && next_wc(cq, &wc, ms); i++) all = text("%s%s%s", all, i ? "; " : "", describe(&wc));
  return *all ? all : "nothing";
}

void drain(struct ibv_cq *cq) {
  struct ibv_wc wc;
  while (next_wc(cq, &wc, 50)) {
  }
}

struct options defaults(enum ibv_qp_type type) {
  return (struct options){
      .type = type, .send_wr = 16, .recv_wr = 16, .sge = 4, .inline_size = 64, .cqe = 64, .sig_all = 0,
      .mtu = IBV_MTU_1024, .timeout = 14, .retry = 7, .rnr_retry = 7, .min_rnr = 12, .rd_atomic = 4,
      .qp_access = REMOTE_ALL, .mr_access = ALL_ACCESS, .size = 1 << 16};
}

struct ibv_ah_attr own_path(void) {
  struct ibv_ah_attr path = {.dlid = suite.port_attr.lid, .port_num = suite.port};
  if (suite.gid_index >= 0) {
    path.is_global = 1;
    path.grh = (struct ibv_global_route){.dgid = suite.gid, .sgid_index = suite.gid_index, .hop_limit = 64};
  }
  return path;
}

struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv, const struct options *o) {
  struct ibv_qp_init_attr init = {
      .send_cq = send, .recv_cq = recv, .srq = o->srq, .qp_type = o->type, .sq_sig_all = o->sig_all,
      .cap = {.max_send_wr = o->send_wr, .max_recv_wr = o->recv_wr, .max_send_sge = o->sge, .max_recv_sge = o->sge,
              .max_inline_data = o->inline_size}};
  return ibv_create_qp(pd, &init);
}

struct ibv_qp_attr full_attr(const struct options *o, uint32_t peer) {
  return (struct ibv_qp_attr){
      .path_mtu = o->mtu, .path_mig_state = IBV_MIG_MIGRATED, .qkey = QKEY, .rq_psn = 0x123456, .sq_psn = 0x123456,
      .dest_qp_num = peer, .qp_access_flags = o->qp_access,
      .cap = {.max_send_wr = o->send_wr, .max_recv_wr = o->recv_wr, .max_send_sge = o->sge, .max_recv_sge = o->sge,
              .max_inline_data = o->inline_size},
      .ah_attr = own_path(), .alt_ah_attr = own_path(), .max_rd_atomic = o->rd_atomic,
      .max_dest_rd_atomic = o->rd_atomic, .min_rnr_timer = o->min_rnr, .port_num = suite.port, .timeout = o->timeout,
      .retry_cnt = o->retry, .rnr_retry = o->rnr_retry, .alt_port_num = suite.port, .alt_timeout = o->timeout};
}

static int required_to_rtr(enum ibv_qp_type type) {
  int mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (type == IBV_QPT_UD) return 0;
  return type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV ? mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : mask;
}

static int required_to_rts(enum ibv_qp_type type) {
  if (type == IBV_QPT_XRC_RECV) return IBV_QP_SQ_PSN | IBV_QP_TIMEOUT;
  if (type != IBV_QPT_RC && type != IBV_QPT_XRC_SEND) return IBV_QP_SQ_PSN;
  return IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
}

int required(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to) {
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return 0;
  if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
    return IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
  if (from == IBV_QPS_INIT && to == IBV_QPS_INIT) return 0;
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) return required_to_rtr(type);
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) return required_to_rts(type);
  if ((from == IBV_QPS_RTS || from == IBV_QPS_SQD) && (to == IBV_QPS_RTS || to == IBV_QPS_SQD)) return 0;
  if (from == IBV_QPS_SQE && to == IBV_QPS_RTS) return type == IBV_QPT_RC ? -1 : 0;
  return -1;
}

int step(struct ibv_qp *qp, const struct options *o, uint32_t peer, enum ibv_qp_state from, enum ibv_qp_state to) {
  struct ibv_qp_attr attr = full_attr(o, peer);
  int mask = required(o->type, from, to);
  attr.qp_state = to;
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE | (mask < 0 ? 0 : mask));
}

enum ibv_qp_state state_of(struct ibv_qp *qp) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  return ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) ? IBV_QPS_UNKNOWN : attr.qp_state;
}

bool wait_state(struct ibv_qp *qp, enum ibv_qp_state state, int ms) {
  double end = now_ms() + ms;
  while (state_of(qp) != state) {
    if (now_ms() > end) return false;
    usleep(1000);
  }
  return true;
}

// A send request that cannot be carried out takes the send queue of a UC or UD queue pair to SQE. The key is none of
// ours, so the failure is a local one.
static int walk_to_sqe(struct ibv_qp *qp, const struct options *o) {
  static uint8_t byte;
  struct ibv_sge sge = {.addr = (uintptr_t)&byte, .length = 1, .lkey = 0x00ffff01};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
  if (o->type == IBV_QPT_RC) return EINVAL;
  struct ibv_ah_attr path = own_path();
  struct ibv_ah *ah = ibv_create_ah(qp->pd, &path);
  if (!ah) return errno;
  if (o->type == IBV_QPT_UD) {
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
  }
  int failed = post_wr(qp, &wr);
  if (!failed && !wait_state(qp, IBV_QPS_SQE, 1000)) failed = ETIMEDOUT;
  ibv_destroy_ah(ah);
  return failed;
}

// Nothing but ERR is to be had of a send queue that is being drained still, even of an empty one.
static void wait_drained(struct ibv_qp *qp) {
  struct ibv_qp_attr attr = {.sq_draining = 1};
  struct ibv_qp_init_attr init;
  for (double end = now_ms() + 3000; attr.sq_draining && now_ms() < end; usleep(1000))
    if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &init)) return;
}

int walk(struct ibv_qp *qp, const struct options *o, uint32_t peer, enum ibv_qp_state to) {
  static const enum ibv_qp_state way[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD};
  if (to == IBV_QPS_ERR) {
    int failed = walk(qp, o, peer, IBV_QPS_INIT);
    return failed ? failed : step(qp, o, peer, IBV_QPS_INIT, IBV_QPS_ERR);
  }
  if (to == IBV_QPS_SQE) {
    int failed = walk(qp, o, peer, IBV_QPS_RTS);
    return failed ? failed : walk_to_sqe(qp, o);
  }
  for (int i = 0; way[i] != to; i++) {
    int failed = step(qp, o, peer, way[i], way[i + 1]);
    if (failed) return failed;
  }
  if (to == IBV_QPS_SQD) wait_drained(qp);
  return 0;
}

uint8_t *make_buffer(size_t size) {
  uint8_t *buf = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return buf == MAP_FAILED ? NULL : buf;
}

void free_buffer(uint8_t *buf, size_t size) {
  if (buf) munmap(buf, size);
}

void fill(uint8_t *buf, size_t size, unsigned seed) {
  for (size_t i = 0; i < size; i++) buf[i] = (i * 7 + i / 251 + seed * 31 + 1);
}

bool filled(const uint8_t *buf, size_t size, unsigned seed) {
  for (size_t i = 0; i < size; i++)
    if (buf[i] != (uint8_t)(i * 7 + i / 251 + seed * 31 + 1)) return false;
  return true;
}

bool all_bytes(const uint8_t *buf, size_t size, uint8_t value) {
  for (size_t i = 0; i < size; i++)
    if (buf[i] != value) return false;
  return true;
}

static void side_close(struct side *side, size_t size) {
  if (side->qp) ibv_destroy_qp(side->qp);
  if (side->send) ibv_destroy_cq(side->send);
  if (side->recv) ibv_destroy_cq(side->recv);
  if (side->mr) ibv_dereg_mr(side->mr);
  free_buffer(side->buf, size);
}

void pair_close(struct pair *pair) {
  side_close(&pair->a, pair->o.size);
  side_close(&pair->b, pair->o.size);
  if (pair->pd) ibv_dealloc_pd(pair->pd);
}

static bool side_open(struct side *side, struct ibv_pd *pd, const struct options *o) {
  side->buf = make_buffer(o->size);
  return side->buf && (side->mr = ibv_reg_mr(pd, side->buf, o->size, o->mr_access)) &&
         (side->send = ibv_create_cq(suite.ctx, o->cqe, NULL, o->channel, 0)) &&
         (side->recv = ibv_create_cq(suite.ctx, o->cqe, NULL, o->channel, 0)) &&
         (side->qp = make_qp(pd, side->send, side->recv, o));
}

static bool pair_give_up(struct pair *pair, const char *what, int error) {
  say("setup", "%s: %s", what, errno_name(error));
  pair_close(pair);
  return false;
}

bool pair_open(struct pair *pair, const struct options *options) {
  struct options first = *options;
  first.srq = NULL; // the side b alone has it
  *pair = (struct pair){.o = *options};
  // A receive queue shared by b's queue pairs is of a protection domain of its own, which the pair then uses.
  pair->pd = options->srq ? NULL : ibv_alloc_pd(suite.ctx);
  struct ibv_pd *pd = options->srq ? options->srq->pd : pair->pd;
  if (!pd || !side_open(&pair->a, pd, &first) || !side_open(&pair->b, pd, options))
    return pair_give_up(pair, "make", errno);
  int failed = walk(pair->a.qp, &pair->o, pair->b.qp->qp_num, IBV_QPS_RTS);
  if (!failed) failed = walk(pair->b.qp, &pair->o, pair->a.qp->qp_num, IBV_QPS_RTS);
  return failed ? pair_give_up(pair, "connect", failed) : true;
}

struct ibv_sge part_of(const struct side *side, size_t offset, uint32_t size) {
  return (struct ibv_sge){.addr = at(side, offset), .length = size, .lkey = side->mr->lkey};
}

int post_wr(struct ibv_qp *qp, struct ibv_send_wr *wr) {
  struct ibv_send_wr *bad;
  return ibv_post_send(qp, wr, &bad);
}

int post_recv(struct side *side, uint64_t id, size_t offset, uint32_t size) {
  struct ibv_sge sge = part_of(side, offset, size);
  struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
  return ibv_post_recv(side->qp, &wr, &bad);
}

int post_send(struct side *side, uint64_t id, unsigned flags, size_t offset, uint32_t size) {
  struct ibv_sge sge = part_of(side, offset, size);
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags};
  return post_wr(side->qp, &wr);
}

int post_ud(struct side *side, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint64_t id, unsigned flags,
            size_t offset, uint32_t size) {
  struct ibv_sge sge = part_of(side, offset, size);
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags};
  wr.wr.ud.ah = ah;
  wr.wr.ud.remote_qpn = qpn;
  wr.wr.ud.remote_qkey = qkey;
  return post_wr(side->qp, &wr);
}

struct ibv_send_wr rdma_wr(struct ibv_sge *sge, enum ibv_wr_opcode opcode, uint64_t id, uint64_t address, uint32_t rkey) {
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
  return wr;
}

struct ibv_send_wr atomic_wr(struct ibv_sge *sge, enum ibv_wr_opcode opcode, uint64_t id, uint64_t address,
                             uint32_t rkey, uint64_t compare_add, uint64_t swap) {
  struct ibv_send_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
  wr.wr.atomic.remote_addr = address;
  wr.wr.atomic.rkey = rkey;
  wr.wr.atomic.compare_add = compare_add;
  wr.wr.atomic.swap = swap;
  return wr;
}

static bool readable(int fd, int ms) {
  struct pollfd one = {.fd = fd, .events = POLLIN};
  return poll(&one, 1, ms) > 0;
}

const char *next_event(struct ibv_context *ctx, const void *whom, int ms) {
  struct ibv_async_event event;
  if (!readable(ctx->async_fd, ms)) return "none";
  if (ibv_get_async_event(ctx, &event)) return text("-1/%s", errno_name(errno));
  const char *name = text("%s %s", event_name(event.event_type), event.element.qp == whom ? "same" : "different");
  ibv_ack_async_event(&event);
  return name;
}

void drain_events(struct ibv_context *ctx) {
  while (strcmp(next_event(ctx, NULL, 50), "none")) {
  }
}
