/*
 * Finds libibverbs at run time, by name and version, as NCCL and others do that must also start
 * without it; then opens the first device with what it found.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <infiniband/verbs.h>

static void *library;

/* The function of this version; it is also what a name without a version means. */
static void *find(const char *name, const char *version)
{
	void *found = dlvsym(library, name, version);

	if (!found || found != dlsym(library, name)) {
		printf("%s, %s: %s\n", name, version, found ? "not the default" : dlerror());
		exit(1);
	}
	return found;
}

#define FIND(result, name, version, ...) \
	result (*name##_at)(__VA_ARGS__) = find(#name, version)

int main(void)
{
	library = dlopen("libibverbs.so.1", RTLD_NOW);
	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	FIND(struct ibv_device **, ibv_get_device_list, "IBVERBS_1.1", int *);
	FIND(void, ibv_free_device_list, "IBVERBS_1.1", struct ibv_device **);
	FIND(struct ibv_context *, ibv_open_device, "IBVERBS_1.1", struct ibv_device *);
	FIND(int, ibv_close_device, "IBVERBS_1.1", struct ibv_context *);
	FIND(int, ibv_query_device, "IBVERBS_1.1", struct ibv_context *, struct ibv_device_attr *);
	find("ibv_create_comp_channel", "IBVERBS_1.0");
	find("ibv_get_pkey_index", "IBVERBS_1.5");
	find("ibv_qp_to_qp_ex", "IBVERBS_1.6");
	find("ibv_reg_mr_iova", "IBVERBS_1.7");
	find("ibv_reg_mr_iova2", "IBVERBS_1.8");
	find("ibv_get_device_index", "IBVERBS_1.9");
	find("ibv_query_ece", "IBVERBS_1.10");
	find("_ibv_query_gid_ex", "IBVERBS_1.11");
	find("ibv_reg_dmabuf_mr", "IBVERBS_1.12");
	find("ibv_is_fork_initialized", "IBVERBS_1.13");
	find("ibv_query_qp_data_in_order", "IBVERBS_1.14");
	find("verbs_register_driver_34", "IBVERBS_PRIVATE_34");
	if (dlvsym(library, "ibv_open_device", "IBVERBS_1.0")) {
		printf("the structures of libibverbs 1.0 are not ours\n");
		return 1;
	}

	struct ibv_device **list = ibv_get_device_list_at(NULL);
	struct ibv_device **again = ibv_get_device_list_at(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device_at(list[0]) : NULL;
	struct ibv_device_attr attr;

	if (!context || ibv_query_device_at(context, &attr)) {
		perror("the first device");
		return 1;
	}
	if (!again || again[0] != list[0]) {
		printf("a device is another one in another list\n");
		return 1;
	}
	ibv_free_device_list_at(again);
	ibv_free_device_list_at(list);
	ibv_close_device_at(context);
	printf("%s\n", attr.fw_ver);
	return 0;
}
