// A conformance suite for verbs: prints a line per check, "theme/check: result", with nothing in it that differs from
// one host to the next, so that the answers of two libraries and devices can be compared with diff.
//
//   gcc -O1 -Wall -Wextra -o verbs-conformance tests/verbs/conformance/*.c -libverbs -lpthread
//
// usage: verbs-conformance [--list] [--only PREFIX]... [--skip PREFIX]... [-d DEVICE] [-i PORT] [-g GIDINDEX]
//   --list   names the checks
//   --only   runs those whose names begin so
//   --skip   says "skipped" of those, for what a device cannot survive
//   -g       paths with a global route from that GID; without, Ethernet ports take the last GID that is RoCE v2 with
//            an IPv4 address, else the first there is, and InfiniBand ports go by LID
// Exit status: 0 if the checks could be run, whatever came out; 2 for wrong usage or no device; 3 if several hung.
#include "check.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>

struct suite suite;

static const struct theme {
  const char *name;
  const struct check *checks;
} themes[] = {
    {"device", device_checks}, {"mr", mr_checks},         {"cq", cq_checks},         {"qp_attr", qp_attr_checks},
    {"qp_state", qp_state_checks}, {"send", send_checks}, {"rdma", rdma_checks},     {"atomic", atomic_checks},
    {"uc", uc_checks},         {"ud", ud_checks},         {"srq", srq_checks},       {"mw", mw_checks},
    {"errors", errors_checks}, {"flush", flush_checks},   {"events", events_checks}, {"ex", ex_checks},
    {"xrc", xrc_checks},       {"many_qps", many_qps_checks}, {"lifetime", lifetime_checks},
};

enum { PREFIXES = 64, CHECK_SECONDS = 150, HANGS = 4 };
struct prefixes {
  const char *all[PREFIXES];
  int count;
};
static char current[128];
static struct prefixes only, skip;
static sigjmp_buf next_check;

void say(const char *part, const char *format, ...) {
  va_list arguments;
  printf("%s%s%s: ", current, part ? "." : "", part ? part : "");
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  putchar('\n');
  fflush(stdout);
}

// A call into the library that faults is a result, too. What the check had open stays open.
static void on_fault(int signal) {
  siglongjmp(next_check, signal);
}

// A check that takes this long hangs. In a library, the next one may get by all the same; a hanging system call ends
// with the process, if at all.
static void on_alarm(int signal) {
  static int hangs;
  if (++hangs < HANGS) siglongjmp(next_check, signal);
  say("fault", "hangs, too");
  _exit(3);
}

static bool among(const struct prefixes *prefixes, const char *name) {
  for (int i = 0; i < prefixes->count; i++)
    if (!strncmp(name, prefixes->all[i], strlen(prefixes->all[i]))) return true;
  return false;
}

static bool add(struct prefixes *prefixes, const char *prefix) {
  if (prefixes->count == PREFIXES) return false;
  prefixes->all[prefixes->count++] = prefix;
  return true;
}

static void run(const struct check *check) {
  int signal = sigsetjmp(next_check, 1);
  if (signal) {
    say("fault", "%s", signal == SIGALRM ? "hangs" : signal == SIGSEGV ? "SIGSEGV" : signal == SIGBUS ? "SIGBUS" : "SIGABRT");
    return;
  }
  alarm(CHECK_SECONDS);
  check->run();
  alarm(0);
}

static void each(bool list) {
  for (size_t t = 0; t < sizeof themes / sizeof *themes; t++)
    for (const struct check *check = themes[t].checks; check->name; check++) {
      snprintf(current, sizeof current, "%s/%s", themes[t].name, check->name);
      if (only.count && !among(&only, current)) continue;
      if (list) puts(current);
      else if (among(&skip, current)) say(NULL, "skipped");
      else run(check);
    }
}

static int fail(const char *why) {
  fprintf(stderr, "verbs-conformance: %s\n", why);
  return 2;
}

static bool is_zero(const union ibv_gid *gid) {
  static const union ibv_gid zero;
  return !memcmp(gid, &zero, sizeof zero);
}

static int choose_gid(void) {
  int found = -1;
  for (int i = 0; i < suite.port_attr.gid_tbl_len && i < 256; i++) {
    struct ibv_gid_entry entry;
    if (ibv_query_gid_ex(suite.ctx, suite.port, i, &entry, 0) || is_zero(&entry.gid)) continue;
    bool v4 = !memcmp(entry.gid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
    if (found < 0 || (v4 && entry.gid_type == IBV_GID_TYPE_ROCE_V2)) found = i;
  }
  return found;
}

static int setup(const char *device) {
  int count = 0;
  struct ibv_device **list = ibv_get_device_list(&count);
  if (!list) return fail("no list of devices");
  for (int i = 0; i < count && !suite.device; i++)
    if (!device || !strcmp(ibv_get_device_name(list[i]), device)) suite.device = list[i];
  if (!suite.device) return fail("no such device");
  suite.ctx = ibv_open_device(suite.device);
  if (!suite.ctx) return fail("cannot open the device");
  // The list is kept: checks open the device again.
  if (ibv_query_device(suite.ctx, &suite.attr)) return fail("cannot query the device");
  if (ibv_query_port(suite.ctx, suite.port, &suite.port_attr)) return fail("cannot query the port");
  if (suite.gid_index < 0 && suite.port_attr.link_layer == IBV_LINK_LAYER_ETHERNET) {
    suite.gid_index = choose_gid();
    if (suite.gid_index < 0) return fail("the port has no GID");
  }
  if (suite.gid_index >= 0 && ibv_query_gid(suite.ctx, suite.port, suite.gid_index, &suite.gid)) return fail("no such GID");
  suite.pd = ibv_alloc_pd(suite.ctx);
  return suite.pd ? 0 : fail("no protection domain");
}

static int usage(void) {
  return fail("usage: verbs-conformance [--list] [--only PREFIX]... [--skip PREFIX]... [-d DEVICE] [-i PORT] [-g GIDINDEX]");
}

int main(int count, char **arguments) {
  const char *device = NULL;
  bool list = false;
  suite.port = 1;
  suite.gid_index = -1;
  for (int i = 1; i < count; i++) {
    const char *option = arguments[i];
    if (!strcmp(option, "--list")) {
      list = true;
      continue;
    }
    if (++i == count) return usage();
    if (!strcmp(option, "--only") && add(&only, arguments[i])) continue;
    if (!strcmp(option, "--skip") && add(&skip, arguments[i])) continue;
    if (!strcmp(option, "-d")) device = arguments[i];
    else if (!strcmp(option, "-i")) suite.port = atoi(arguments[i]);
    else if (!strcmp(option, "-g")) suite.gid_index = atoi(arguments[i]);
    else return usage();
  }
  if (list) {
    each(true);
    return 0;
  }
  int status = setup(device);
  if (status) return status;
  signal(SIGSEGV, on_fault);
  signal(SIGBUS, on_fault);
  signal(SIGABRT, on_fault);
  signal(SIGALRM, on_alarm);
  each(false);
  return 0;
}
