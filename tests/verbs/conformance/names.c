// Symbolic names of what verbs return.
#include "check.h"

#include <stdarg.h>

char *text(const char *format, ...) {
  enum { TEXTS = 128 };
  static char ring[TEXTS][2048];
  static int used;
  char *buffer = ring[used++ % TEXTS];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(buffer, sizeof *ring, format, arguments);
  va_end(arguments);
  return buffer;
}

const char *errno_name(int number) {
  const char *name = strerrorname_np(number);
  if (!number) return "0";
  if (number == EOPNOTSUPP) return "EOPNOTSUPP";
  return name ? name : text("E%d", number);
}

const char *rc(int result) {
  if (!result) return "ok";
  if (result == -1) return text("-1/%s", errno_name(errno));
  return result < 0 ? text("-%s", errno_name(-result)) : errno_name(result);
}

const char *made(const void *thing) {
  return thing ? "ok" : errno_name(errno);
}

#define NAMES(...) \
  static const char *const names[] = {__VA_ARGS__}; \
  const size_t count = sizeof names / sizeof *names

const char *status_name(enum ibv_wc_status status) {
  NAMES("SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR",
        "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
        "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR",
        "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR", "TM_ERR", "TM_RNDV_INCOMPLETE");
  return (size_t)status < count ? names[status] : text("status %d", status);
}

const char *opcode_name(enum ibv_wc_opcode opcode) {
  NAMES("SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV", "TSO");
  if (opcode == IBV_WC_RECV) return "RECV";
  if (opcode == IBV_WC_RECV_RDMA_WITH_IMM) return "RECV_RDMA_WITH_IMM";
  return (size_t)opcode < count ? names[opcode] : text("opcode %d", opcode);
}

const char *event_name(enum ibv_event_type type) {
  NAMES("CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR",
        "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR",
        "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL");
  return (size_t)type < count ? names[type] : text("event %d", type);
}

const char *state_name(enum ibv_qp_state state) {
  NAMES("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR", "UNKNOWN");
  return (size_t)state < count ? names[state] : text("state %d", state);
}

const char *type_name(enum ibv_qp_type type) {
  return type == IBV_QPT_RC ? "RC" : type == IBV_QPT_UC ? "UC" : type == IBV_QPT_UD ? "UD" : text("type %d", type);
}
