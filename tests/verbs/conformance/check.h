// What the checks share: the device under test, symbolic names, completions with a time limit, connected pairs.
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// A check prints one line, or several with a name each. A theme is an array of checks that ends with {0}.
struct check {
  const char *name;
  void (*run)(void);
};

struct suite {
  struct ibv_device *device;
  struct ibv_context *ctx;
  struct ibv_pd *pd;
  struct ibv_device_attr attr;
  struct ibv_port_attr port_attr;
  uint8_t port;
  int gid_index; // -1: paths go by LID alone
  union ibv_gid gid;
};
extern struct suite suite;

// Prints "theme/check.part: result"; without a part, "theme/check: result".
void say(const char *part, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Names. The texts live in a ring of buffers: some hundred of them are valid at a time.
char *text(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *errno_name(int number);
const char *status_name(enum ibv_wc_status status);
const char *opcode_name(enum ibv_wc_opcode opcode);
const char *event_name(enum ibv_event_type type);
const char *state_name(enum ibv_qp_state state);
const char *type_name(enum ibv_qp_type type);

// What a call returned: ok; E... as its return value; -1/E... for -1 with errno; -E... for a negated number.
const char *rc(int result);
// What a call that makes something returned: ok or errno's name.
const char *made(const void *thing);
#define RC(call) (errno = 0, rc(call))
#define MADE(thing, call) (errno = 0, (thing) = (call), made(thing))
static inline const char *yes(bool is) { return is ? "yes" : "no"; }

enum { LONG = 20000, SHORT = 400 }; // milliseconds: for what must come, and for what must not
double now_ms(void);
void pause_ms(int ms);
// Polls for one completion; false if none came in time.
bool next_wc(struct ibv_cq *cq, struct ibv_wc *wc, int ms);
// Waits for so many completions and describes them, "nothing" if there were none; fewer if time ran out.
const char *completions(struct ibv_cq *cq, int count, int ms);
const char *describe(const struct ibv_wc *wc);
void drain(struct ibv_cq *cq);

// How the two queue pairs of a pair are made; defaults() is what most checks want.
struct options {
  enum ibv_qp_type type;
  uint32_t send_wr, recv_wr, sge, inline_size;
  int cqe;
  int sig_all;
  enum ibv_mtu mtu;
  uint8_t timeout, retry, rnr_retry, min_rnr, rd_atomic;
  unsigned qp_access, mr_access;
  size_t size;
  struct ibv_srq *srq; // of the side b
  struct ibv_comp_channel *channel;
};
struct side {
  struct ibv_cq *send, *recv;
  struct ibv_qp *qp;
  struct ibv_mr *mr;
  uint8_t *buf;
};
struct pair {
  struct options o;
  struct ibv_pd *pd;
  struct side a, b;
};
struct options defaults(enum ibv_qp_type type);
// Both sides in RTS, connected with each other. On failure says so; then there is nothing to close.
bool pair_open(struct pair *pair, const struct options *options);
void pair_close(struct pair *pair);

enum { ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND,
       REMOTE_ALL = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
       QKEY = 0x11111111 };

struct ibv_ah_attr own_path(void); // from the port to itself
struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv, const struct options *o);
// Every attribute with a sensible value, and those a transition of the standard's table needs, -1 if it has none such.
struct ibv_qp_attr full_attr(const struct options *o, uint32_t peer);
int required(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to);
// One step, as the standard's table has it; walks from RESET to a state; SQE by a failing send.
int step(struct ibv_qp *qp, const struct options *o, uint32_t peer, enum ibv_qp_state from, enum ibv_qp_state to);
int walk(struct ibv_qp *qp, const struct options *o, uint32_t peer, enum ibv_qp_state to);
enum ibv_qp_state state_of(struct ibv_qp *qp);
bool wait_state(struct ibv_qp *qp, enum ibv_qp_state state, int ms);

uint8_t *make_buffer(size_t size);
void free_buffer(uint8_t *buf, size_t size);
void fill(uint8_t *buf, size_t size, unsigned seed);
bool filled(const uint8_t *buf, size_t size, unsigned seed);
bool all_bytes(const uint8_t *buf, size_t size, uint8_t value);

struct ibv_sge part_of(const struct side *side, size_t offset, uint32_t size);
int post_recv(struct side *side, uint64_t id, size_t offset, uint32_t size);
int post_send(struct side *side, uint64_t id, unsigned flags, size_t offset, uint32_t size);
int post_ud(struct side *side, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint64_t id, unsigned flags,
            size_t offset, uint32_t size);
// An RDMA or atomic operation on the peer's memory; signaled.
struct ibv_send_wr rdma_wr(struct ibv_sge *sge, enum ibv_wr_opcode opcode, uint64_t id, uint64_t address, uint32_t rkey);
struct ibv_send_wr atomic_wr(struct ibv_sge *sge, enum ibv_wr_opcode opcode, uint64_t id, uint64_t address,
                             uint32_t rkey, uint64_t compare_add, uint64_t swap);
int post_wr(struct ibv_qp *qp, struct ibv_send_wr *wr);
static inline uint64_t at(const struct side *side, size_t offset) { return (uintptr_t)side->buf + offset; }

// The next asynchronous event's type and whom it is about, "none" after the time; acknowledged.
const char *next_event(struct ibv_context *ctx, const void *whom, int ms);
void drain_events(struct ibv_context *ctx);

extern const struct check device_checks[], mr_checks[], cq_checks[], qp_attr_checks[], qp_state_checks[], send_checks[],
    rdma_checks[], atomic_checks[], uc_checks[], ud_checks[], srq_checks[], mw_checks[], errors_checks[], flush_checks[],
    events_checks[], ex_checks[], xrc_checks[], many_qps_checks[], lifetime_checks[];

#endif
