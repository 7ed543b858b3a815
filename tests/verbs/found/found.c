/*
 * Functions of libibverbs that a program finds itself: linked with this instead of the library, it has them by dlopen(3), half of them
 * by dlsym(3), half by dlvsym(3).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define FUNCTIONS(found) \
	found(ibv_ack_cq_events, NULL) \
	found(ibv_alloc_pd, NULL) \
	found(ibv_create_comp_channel, NULL) \
	found(ibv_create_cq, "IBVERBS_1.1") \
	found(ibv_create_qp, NULL) \
	found(ibv_dereg_mr, "IBVERBS_1.1") \
	found(ibv_destroy_qp, NULL) \
	found(ibv_get_cq_event, "IBVERBS_1.1") \
	found(ibv_get_device_list, "IBVERBS_1.1") \
	found(ibv_modify_qp, NULL) \
	found(ibv_open_device, "IBVERBS_1.1") \
	found(ibv_query_port, NULL) \
	found(ibv_reg_mr, "IBVERBS_1.1") \
	found(ibv_wc_status_str, NULL)

/* A jump takes whatever arguments there are. */
#define DEFINE(name, version) \
	void *at_##name; \
	__attribute__((naked)) void name(void) \
	{ \
		__asm__("jmp *at_" #name "(%rip)"); \
	}
FUNCTIONS(DEFINE)

static void *find(void *library, const char *name, const char *version)
{
	void *at = version ? dlvsym(library, name, version) : dlsym(library, name);

	if (!at) {
		fprintf(stderr, "%s: %s\n", name, dlerror());
		exit(1);
	}
	return at;
}

__attribute__((constructor)) static void find_all(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

#define FIND(name, version) at_##name = find(library, #name, version);
	FUNCTIONS(FIND)
}
