// Memory regions: what may be registered, how, and what re-registration does.
#include "check.h"

enum { SIZE = 1 << 14 };

static const char *access_text(unsigned access) {
  static const char *const names[] = {"LW", "RW", "RR", "RA", "MB", "ZB"};
  const char *all = "";
  for (int i = 0; i < 6; i++)
    if (access & 1u << i) all = text("%s%s%s", all, *all ? "+" : "", names[i]);
  return *all ? all : "none";
}

static const char *try_reg(void *addr, size_t size, int access) {
  struct ibv_mr *mr;
  const char *answer = MADE(mr, ibv_reg_mr(suite.pd, addr, size, access));
  if (!mr) return answer;
  bool right = mr->addr == addr && mr->length == size && mr->pd == suite.pd && mr->context == suite.ctx;
  int failed = ibv_dereg_mr(mr);
  if (failed) return text("ok, dereg %s", rc(failed));
  return right ? "ok" : "ok, wrong fields";
}

// All combinations of the access flags the standard knows. Remote writes and atomics need local write.
static void access_flags(void) {
  uint8_t *buf = make_buffer(SIZE);
  for (unsigned access = 0; access < 32; access++) say(access_text(access), "%s", try_reg(buf, SIZE, access));
  say("LW+ZB", "%s", try_reg(buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED));
  say("LW+on_demand", "%s", try_reg(buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
  say("LW+hugetlb", "%s", try_reg(buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_HUGETLB));
  say("LW+relaxed_ordering", "%s", try_reg(buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING));
  say("LW+all_optional", "%s", try_reg(buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_OPTIONAL_RANGE));
  say("LW+bit_8", "%s", try_reg(buf, SIZE, IBV_ACCESS_LOCAL_WRITE | 1 << 8));
  say("LW+bit_19", "%s", try_reg(buf, SIZE, IBV_ACCESS_LOCAL_WRITE | 1 << 19));
  say("LW+bit_30", "%s", try_reg(buf, SIZE, IBV_ACCESS_LOCAL_WRITE | 1 << 30));
  free_buffer(buf, SIZE);
}

static void sizes(void) {
  uint8_t *buf = make_buffer(SIZE);
  say("one", "%s", try_reg(buf, 1, IBV_ACCESS_LOCAL_WRITE));
  say("odd_address", "%s", try_reg(buf + 1, 4097, IBV_ACCESS_LOCAL_WRITE));
  say("zero", "%s", try_reg(buf, 0, IBV_ACCESS_LOCAL_WRITE));
  say("null_zero", "%s", try_reg(NULL, 0, IBV_ACCESS_LOCAL_WRITE));
  say("huge", "%s", try_reg(buf, (size_t)1 << 50, IBV_ACCESS_LOCAL_WRITE));
  say("wraps", "%s", try_reg(buf, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE));
  say("beyond_mapping", "%s", try_reg(buf, (size_t)1 << 40, IBV_ACCESS_LOCAL_WRITE));
  free_buffer(buf, SIZE);
}

static void mappings(void) {
  uint8_t *hole = make_buffer(SIZE), *fixed = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint8_t *none = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(hole + 4096, 4096);
  say("null", "%s", try_reg(NULL, 4096, IBV_ACCESS_LOCAL_WRITE));
  say("unmapped", "%s", try_reg(hole + 4096, 4096, IBV_ACCESS_LOCAL_WRITE));
  say("hole", "%s", try_reg(hole, SIZE, IBV_ACCESS_LOCAL_WRITE));
  say("kernel_address", "%s", try_reg((void *)0xffff800000000000, 4096, IBV_ACCESS_LOCAL_WRITE));
  say("read_only_for_reading", "%s", try_reg(fixed, SIZE, 0));
  say("read_only_for_remote_reading", "%s", try_reg(fixed, SIZE, IBV_ACCESS_REMOTE_READ));
  say("read_only_for_writing", "%s", try_reg(fixed, SIZE, IBV_ACCESS_LOCAL_WRITE));
  say("no_access_for_reading", "%s", try_reg(none, SIZE, 0));
  free_buffer(hole, SIZE);
  free_buffer(fixed, SIZE);
  free_buffer(none, SIZE);
}

static void keys(void) {
  uint8_t *buf = make_buffer(SIZE);
  struct ibv_mr *a = ibv_reg_mr(suite.pd, buf, SIZE, ALL_ACCESS), *b = ibv_reg_mr(suite.pd, buf, SIZE, ALL_ACCESS);
  if (!a || !b) return say("setup", "%s", errno_name(errno));
  say("lkeys_differ", "%s", yes(a->lkey != b->lkey));
  say("rkeys_differ", "%s", yes(a->rkey != b->rkey));
  uint32_t old = a->lkey;
  say("dereg", "%s", RC(ibv_dereg_mr(a)));
  a = ibv_reg_mr(suite.pd, buf, SIZE, ALL_ACCESS);
  say("not_at_once_again", "%s", yes(a && a->lkey != old));
  say("dereg_second", "%s", RC(ibv_dereg_mr(b)));
  if (a) ibv_dereg_mr(a);
  struct ibv_mr *local = ibv_reg_mr(suite.pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
  say("local_only_has_lkey", "%s", yes(local && local->lkey));
  if (local) ibv_dereg_mr(local);
  free_buffer(buf, SIZE);
}

static void iova(void) {
  uint8_t *buf = make_buffer(SIZE);
  struct ibv_mr *mr;
  say("page_aligned", "%s", MADE(mr, ibv_reg_mr_iova(suite.pd, buf, SIZE, 0x10000, ALL_ACCESS)));
  if (mr) ibv_dereg_mr(mr);
  say("same_offset", "%s", MADE(mr, ibv_reg_mr_iova(suite.pd, buf + 100, 1000, 0x10064, ALL_ACCESS)));
  if (mr) ibv_dereg_mr(mr);
  say("other_offset", "%s", MADE(mr, ibv_reg_mr_iova(suite.pd, buf, 1000, 0x10001, ALL_ACCESS)));
  if (mr) ibv_dereg_mr(mr);
  say("wraps", "%s", MADE(mr, ibv_reg_mr_iova(suite.pd, buf, SIZE, UINT64_MAX - 4095, ALL_ACCESS)));
  if (mr) ibv_dereg_mr(mr);
  free_buffer(buf, SIZE);
}

static const char *rereg_rc(int result) {
  switch (result) {
  case 0: return "ok";
  case IBV_REREG_MR_ERR_INPUT: return text("ERR_INPUT/%s", errno_name(errno));
  case IBV_REREG_MR_ERR_DONT_FORK_NEW: return text("ERR_DONT_FORK_NEW/%s", errno_name(errno));
  case IBV_REREG_MR_ERR_DO_FORK_OLD: return text("ERR_DO_FORK_OLD/%s", errno_name(errno));
  case IBV_REREG_MR_ERR_CMD: return text("ERR_CMD/%s", errno_name(errno));
  case IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW: return text("ERR_CMD_AND_DO_FORK_NEW/%s", errno_name(errno));
  default: return text("%d/%s", result, errno_name(errno));
  }
}

static void one_rereg(const char *name, int flags, struct ibv_pd *pd, void *addr, size_t size, int access) {
  uint8_t *buf = make_buffer(SIZE);
  struct ibv_mr *mr = ibv_reg_mr(suite.pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
  if (!mr) return say(name, "setup: %s", errno_name(errno));
  errno = 0;
  say(name, "%s", rereg_rc(ibv_rereg_mr(mr, flags, pd, addr, size, access)));
  ibv_dereg_mr(mr);
  free_buffer(buf, SIZE);
}

static void rereg(void) {
  uint8_t *other = make_buffer(SIZE);
  struct ibv_pd *pd = ibv_alloc_pd(suite.ctx);
  one_rereg("nothing", 0, NULL, NULL, 0, 0);
  one_rereg("unknown_flag", 8, NULL, NULL, 0, 0);
  one_rereg("access", IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS);
  one_rereg("access_invalid", IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE);
  one_rereg("access_unknown", IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | 1 << 19);
  one_rereg("pd", IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0);
  one_rereg("pd_null", IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0);
  one_rereg("translation", IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, SIZE, 0);
  one_rereg("translation_null", IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, SIZE, 0);
  one_rereg("translation_zero", IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 0, 0);
  one_rereg("everything", IBV_REREG_MR_FLAGS_SUPPORTED, pd, other, SIZE, ALL_ACCESS);
  say("pd_free", "%s", RC(ibv_dealloc_pd(pd)));
  free_buffer(other, SIZE);
}

static void optional(void) {
  struct ibv_mr *mr;
  say("null_mr", "%s", MADE(mr, ibv_alloc_null_mr(suite.pd)));
  if (mr) say("null_mr_dereg", "%s", RC(ibv_dereg_mr(mr)));
  struct ibv_sge sge = {0};
  say("advise", "%s", RC(ibv_advise_mr(suite.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1)));
  say("dmabuf_bad_fd", "%s", MADE(mr, ibv_reg_dmabuf_mr(suite.pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE)));
  if (mr) ibv_dereg_mr(mr);
}

static void pd_busy(void) {
  uint8_t *buf = make_buffer(SIZE);
  struct ibv_pd *pd = ibv_alloc_pd(suite.ctx);
  struct ibv_mr *mr = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
  if (!mr) return say("setup", "%s", errno_name(errno));
  say("dealloc_with_mr", "%s", RC(ibv_dealloc_pd(pd)));
  say("dereg", "%s", RC(ibv_dereg_mr(mr)));
  free_buffer(buf, SIZE);
}

static void many(void) {
  enum { COUNT = 500 };
  struct ibv_mr *mrs[COUNT];
  uint8_t *buf = make_buffer(SIZE);
  int made_count = 0, same = 0;
  while (made_count < COUNT && (mrs[made_count] = ibv_reg_mr(suite.pd, buf, SIZE, ALL_ACCESS))) made_count++;
  for (int i = 0; i < made_count; i++)
    for (int j = 0; j < i; j++) same += mrs[i]->lkey == mrs[j]->lkey || mrs[i]->rkey == mrs[j]->rkey;
  say("made", "%d", made_count);
  say("same_keys", "%d", same);
  int failed = 0;
  for (int i = 0; i < made_count; i++) failed += ibv_dereg_mr(mrs[i]) != 0;
  say("dereg_failures", "%d", failed);
  free_buffer(buf, SIZE);
}

const struct check mr_checks[] = {{"access", access_flags}, {"size", sizes}, {"mapping", mappings}, {"keys", keys},
                                  {"iova", iova}, {"rereg", rereg}, {"optional", optional}, {"pd_busy", pd_busy},
                                  {"many", many}, {0}};
