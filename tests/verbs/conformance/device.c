// Devices, ports, tables, protection domains: everything that can be asked without moving data.
#include "check.h"

static void list(void) {
  int count = 0;
  struct ibv_device **devices;
  say("get", "%s", MADE(devices, ibv_get_device_list(&count)));
  say("ends_with_null", "%s", yes(devices && !devices[count]));
  say("without_count", "%s", made(ibv_get_device_list(NULL)));
  ibv_free_device_list(devices);
  say("has_name", "%s", yes(ibv_get_device_name(suite.device) && *ibv_get_device_name(suite.device)));
  say("has_guid", "%s", yes(ibv_get_device_guid(suite.device) != 0));
  say("index_known", "%s", yes(ibv_get_device_index(suite.device) >= 0));
  say("node_type", "%s", suite.device->node_type == IBV_NODE_CA ? "CA" : text("%d", suite.device->node_type));
  say("transport", "%s", suite.device->transport_type == IBV_TRANSPORT_IB ? "IB" : text("%d", suite.device->transport_type));
}

static void open_close(void) {
  struct ibv_context *ctx;
  say("open", "%s", MADE(ctx, ibv_open_device(suite.device)));
  if (!ctx) return;
  say("another_context", "%s", yes(ctx != suite.ctx));
  say("same_device", "%s", yes(ctx->device == suite.device));
  say("fds", "%s", yes(ctx->cmd_fd >= 0 && ctx->async_fd >= 0));
  say("vectors", "%s", yes(ctx->num_comp_vectors >= 1));
  say("close", "%s", RC(ibv_close_device(ctx)));
}

static void close_with_objects(void) {
  struct ibv_context *ctx = ibv_open_device(suite.device);
  if (!ctx || !ibv_alloc_pd(ctx) || !ibv_create_cq(ctx, 1, NULL, NULL, 0)) return say("setup", "%s", errno_name(errno));
  say(NULL, "%s", RC(ibv_close_device(ctx)));
}

static void query(void) {
  struct ibv_device_attr a;
  say("call", "%s", RC(ibv_query_device(suite.ctx, &a)));
  say("guid_is_the_devices", "%s", yes(a.node_guid == ibv_get_device_guid(suite.device)));
  say("ports", "%d", a.phys_port_cnt);
  say("max_qp", "%s", yes(a.max_qp > 0 && a.max_qp_wr > 0 && a.max_sge > 0));
  say("max_cq", "%s", yes(a.max_cq > 0 && a.max_cqe > 0));
  say("max_mr", "%s", yes(a.max_mr > 0 && a.max_pd > 0 && a.max_mr_size > 0));
  say("max_srq", "%s", yes(a.max_srq > 0 && a.max_srq_wr > 0 && a.max_srq_sge > 0));
  say("max_rd_atomic", "%s", yes(a.max_qp_rd_atom > 0 && a.max_qp_init_rd_atom > 0));
  say("max_ah", "%s", yes(a.max_ah > 0));
  say("page_4096", "%s", yes(a.page_size_cap & 4096));
  say("atomic", "%s", a.atomic_cap == IBV_ATOMIC_NONE ? "NONE" : a.atomic_cap == IBV_ATOMIC_HCA ? "HCA" : "GLOB");
  say("pkeys", "%s", yes(a.max_pkeys >= 1));
}

static void capabilities(void) {
  static const struct { const char *name; unsigned flag; } flags[] = {
      {"RESIZE_MAX_WR", IBV_DEVICE_RESIZE_MAX_WR}, {"BAD_PKEY_CNTR", IBV_DEVICE_BAD_PKEY_CNTR},
      {"BAD_QKEY_CNTR", IBV_DEVICE_BAD_QKEY_CNTR}, {"AUTO_PATH_MIG", IBV_DEVICE_AUTO_PATH_MIG},
      {"CURR_QP_STATE_MOD", IBV_DEVICE_CURR_QP_STATE_MOD}, {"PORT_ACTIVE_EVENT", IBV_DEVICE_PORT_ACTIVE_EVENT},
      {"SYS_IMAGE_GUID", IBV_DEVICE_SYS_IMAGE_GUID}, {"RC_RNR_NAK_GEN", IBV_DEVICE_RC_RNR_NAK_GEN},
      {"SRQ_RESIZE", IBV_DEVICE_SRQ_RESIZE}, {"MEM_WINDOW", IBV_DEVICE_MEM_WINDOW}, {"XRC", IBV_DEVICE_XRC},
      {"MEM_MGT_EXTENSIONS", IBV_DEVICE_MEM_MGT_EXTENSIONS}, {"MEM_WINDOW_TYPE_2A", IBV_DEVICE_MEM_WINDOW_TYPE_2A},
      {"MEM_WINDOW_TYPE_2B", IBV_DEVICE_MEM_WINDOW_TYPE_2B}};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
    say(flags[i].name, "%s", yes(suite.attr.device_cap_flags & flags[i].flag));
}

static void query_ex(void) {
  struct ibv_device_attr_ex a;
  struct ibv_query_device_ex_input input = {0};
  say("null_input", "%s", RC(ibv_query_device_ex(suite.ctx, NULL, &a)));
  say("input", "%s", RC(ibv_query_device_ex(suite.ctx, &input, &a)));
  say("same_as_plain", "%s", yes(a.orig_attr.max_qp == suite.attr.max_qp && a.orig_attr.max_cqe == suite.attr.max_cqe));
  say("ports", "%u", a.phys_port_cnt_ex);
  say("odp", "0x%llx", (unsigned long long)a.odp_caps.general_caps);
  say("tso", "0x%x", a.tso_caps.max_tso);
  say("timestamps", "%s", yes(a.completion_timestamp_mask));
  say("tag_matching", "0x%x", a.tm_caps.flags);
  say("device_memory", "%s", yes(a.max_dm_size));
  input.comp_mask = 1;
  say("unknown_input", "%s", RC(ibv_query_device_ex(suite.ctx, &input, &a)));
}

static void port(void) {
  struct ibv_port_attr a;
  int beyond = suite.attr.phys_port_cnt + 1;
  say("valid", "%s", RC(ibv_query_port(suite.ctx, suite.port, &a)));
  say("state", "%s", ibv_port_state_str(a.state));
  say("link_layer", "%s", a.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : a.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "?");
  say("has_lid", "%s", yes(a.lid));
  say("mtu_in_range", "%s", yes(a.active_mtu >= IBV_MTU_256 && a.active_mtu <= a.max_mtu && a.max_mtu <= IBV_MTU_4096));
  say("max_msg_sz_1MiB", "%s", yes(a.max_msg_sz >= 1 << 20));
  say("tables", "%s", yes(a.gid_tbl_len > 0 && a.pkey_tbl_len > 0));
  say("phys_state", "%d", a.phys_state);
  say("zero", "%s", RC(ibv_query_port(suite.ctx, 0, &a)));
  say("beyond", "%s", RC(ibv_query_port(suite.ctx, beyond, &a)));
  say("255", "%s", RC(ibv_query_port(suite.ctx, 255, &a)));
}

static void gid(void) {
  union ibv_gid gid;
  int length = suite.port_attr.gid_tbl_len;
  say("first", "%s", RC(ibv_query_gid(suite.ctx, suite.port, 0, &gid)));
  say("first_not_zero", "%s", yes(gid.global.interface_id));
  say("first_prefix", "0x%llx", (unsigned long long)be64toh(gid.global.subnet_prefix));
  say("last", "%s", RC(ibv_query_gid(suite.ctx, suite.port, length - 1, &gid)));
  say("beyond", "%s", RC(ibv_query_gid(suite.ctx, suite.port, length, &gid)));
  say("negative", "%s", RC(ibv_query_gid(suite.ctx, suite.port, -1, &gid)));
  say("bad_port", "%s", RC(ibv_query_gid(suite.ctx, suite.attr.phys_port_cnt + 1, 0, &gid)));
}

static void gid_ex(void) {
  struct ibv_gid_entry entry, table[8];
  union ibv_gid gid;
  int length = suite.port_attr.gid_tbl_len;
  say("first", "%s", RC(ibv_query_gid_ex(suite.ctx, suite.port, 0, &entry, 0)));
  say("type", "%s", entry.gid_type == IBV_GID_TYPE_IB ? "IB" : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1" : "RoCE v2");
  say("index_and_port", "%s", yes(entry.gid_index == 0 && entry.port_num == suite.port));
  ibv_query_gid(suite.ctx, suite.port, 0, &gid);
  say("same_as_plain", "%s", yes(!memcmp(&gid, &entry.gid, sizeof gid)));
  say("flags", "%s", RC(ibv_query_gid_ex(suite.ctx, suite.port, 0, &entry, 1)));
  say("empty_entry", "%s", RC(ibv_query_gid_ex(suite.ctx, suite.port, length - 1, &entry, 0)));
  say("beyond", "%s", RC(ibv_query_gid_ex(suite.ctx, suite.port, length, &entry, 0)));
  say("bad_port", "%s", RC(ibv_query_gid_ex(suite.ctx, suite.attr.phys_port_cnt + 1, 0, &entry, 0)));
  say("table_some", "%s", yes(ibv_query_gid_table(suite.ctx, table, 8, 0) > 0));
  say("table_too_short", "%s", rc((errno = 0, ibv_query_gid_table(suite.ctx, table, 0, 0))));
}

static void pkey(void) {
  __be16 pkey = 0;
  int length = suite.port_attr.pkey_tbl_len;
  say("first", "%s", RC(ibv_query_pkey(suite.ctx, suite.port, 0, &pkey)));
  say("first_value", "0x%x", ntohs(pkey));
  say("index_of_first", "%s", yes(ibv_get_pkey_index(suite.ctx, suite.port, pkey) == 0));
  say("index_of_unknown", "%d", ibv_get_pkey_index(suite.ctx, suite.port, htons(0x1234)));
  say("last", "%s", RC(ibv_query_pkey(suite.ctx, suite.port, length - 1, &pkey)));
  say("beyond", "%s", RC(ibv_query_pkey(suite.ctx, suite.port, length, &pkey)));
  say("negative", "%s", RC(ibv_query_pkey(suite.ctx, suite.port, -1, &pkey)));
  say("bad_port", "%s", RC(ibv_query_pkey(suite.ctx, suite.attr.phys_port_cnt + 1, 0, &pkey)));
}

static void pd(void) {
  struct ibv_pd *one, *two;
  say("alloc", "%s", MADE(one, ibv_alloc_pd(suite.ctx)));
  say("another", "%s", MADE(two, ibv_alloc_pd(suite.ctx)));
  say("context", "%s", yes(one->context == suite.ctx));
  say("differ", "%s", yes(one != two && one->handle != two->handle));
  say("dealloc", "%s", RC(ibv_dealloc_pd(one)));
  say("dealloc_other", "%s", RC(ibv_dealloc_pd(two)));
}

static void strings(void) {
  say("rate_mult", "%d %d %d", ibv_rate_to_mult(IBV_RATE_10_GBPS), ibv_rate_to_mult(IBV_RATE_100_GBPS), ibv_rate_to_mult(99));
  say("mult_rate", "%d %d", mult_to_ibv_rate(4), mult_to_ibv_rate(3));
  say("rate_mbps", "%d %d %d", ibv_rate_to_mbps(IBV_RATE_10_GBPS), ibv_rate_to_mbps(IBV_RATE_100_GBPS), ibv_rate_to_mbps(99));
  say("mbps_rate", "%d %d", mbps_to_ibv_rate(10000), mbps_to_ibv_rate(12345));
  say("node_types", "%s|%s|%s", ibv_node_type_str(IBV_NODE_CA), ibv_node_type_str(IBV_NODE_RNIC), ibv_node_type_str(99));
  say("port_states", "%s|%s|%s", ibv_port_state_str(IBV_PORT_DOWN), ibv_port_state_str(IBV_PORT_ACTIVE), ibv_port_state_str(99));
  for (int i = IBV_WC_SUCCESS; i <= IBV_WC_TM_RNDV_INCOMPLETE + 1; i++)
    say(text("status_%d", i), "%s", ibv_wc_status_str(i));
  for (int i = IBV_EVENT_CQ_ERR; i <= IBV_EVENT_WQ_FATAL + 1; i++) say(text("event_%d", i), "%s", ibv_event_type_str(i));
}

static void fork_state(void) {
  enum ibv_fork_status status = ibv_is_fork_initialized();
  say("status", "%s", status == IBV_FORK_DISABLED ? "DISABLED" : status == IBV_FORK_ENABLED ? "ENABLED" : "UNNEEDED");
  say("init_late", "%s", RC(ibv_fork_init()));
}

// Calls a device may leave out; they answer EOPNOTSUPP then.
static void optional(void) {
  struct ibv_td_init_attr td_attr = {0};
  struct ibv_td *td;
  struct ibv_counters_init_attr counters_attr = {0};
  struct ibv_counters *counters;
  struct ibv_alloc_dm_attr dm_attr = {.length = 64};
  struct ibv_dm *dm;
  struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
  say("alloc_td", "%s", MADE(td, ibv_alloc_td(suite.ctx, &td_attr)));
  if (td) say("dealloc_td", "%s", RC(ibv_dealloc_td(td)));
  say("alloc_parent_domain", "%s", made((errno = 0, ibv_alloc_parent_domain(suite.ctx, &(struct ibv_parent_domain_init_attr){.pd = suite.pd}))));
  say("create_counters", "%s", MADE(counters, ibv_create_counters(suite.ctx, &counters_attr)));
  if (counters) say("destroy_counters", "%s", RC(ibv_destroy_counters(counters)));
  say("alloc_dm", "%s", MADE(dm, ibv_alloc_dm(suite.ctx, &dm_attr)));
  if (dm) say("free_dm", "%s", RC(ibv_free_dm(dm)));
  say("query_rt_values", "%s", RC(ibv_query_rt_values_ex(suite.ctx, &values)));
}

// Objects of one context by their handles in another of the same file.
static void import(void) {
  struct ibv_context *ctx = NULL;
  uint8_t *buf = make_buffer(4096);
  struct ibv_mr *mr = ibv_reg_mr(suite.pd, buf, 4096, ALL_ACCESS), *other_mr = NULL;
  if (!mr) return say("setup", "%s", errno_name(errno));
  int fd = dup(suite.ctx->cmd_fd);
  say("device", "%s", MADE(ctx, ibv_import_device(fd)));
  if (ctx) {
    struct ibv_pd *pd;
    say("pd", "%s", MADE(pd, ibv_import_pd(ctx, suite.pd->handle)));
    if (pd) {
      say("mr", "%s", MADE(other_mr, ibv_import_mr(pd, mr->handle)));
      if (other_mr) {
        say("mr_keys", "%s", yes(other_mr->lkey == mr->lkey && other_mr->rkey == mr->rkey));
        ibv_unimport_mr(other_mr);
      }
      ibv_unimport_pd(pd);
    }
    say("no_such_pd", "%s", made((errno = 0, ibv_import_pd(ctx, 0xfffff))));
    say("close", "%s", RC(ibv_close_device(ctx)));
  }
  say("bad_fd", "%s", made((errno = 0, ibv_import_device(-1))));
  ibv_dereg_mr(mr);
  free_buffer(buf, 4096);
}

const struct check device_checks[] = {
    {"list", list}, {"open_close", open_close}, {"close_with_objects", close_with_objects}, {"query", query},
    {"capabilities", capabilities}, {"query_ex", query_ex}, {"port", port}, {"gid", gid}, {"gid_ex", gid_ex},
    {"pkey", pkey}, {"pd", pd}, {"strings", strings}, {"fork", fork_state}, {"optional", optional},
    {"import", import}, {0}};
