/*
 * Two processes that write into each other's memory over a queue pair, until one of them is killed.
 *
 *     ended STOP VICTIM WAITS
 *
 * Beside the plugin of verbs each has one of its own, with the patience of an hour: in a drain, the one that is to be killed
 * (whose number is in the file VICTIM) does not come to an end, and the other waits for it (then there is the file WAITS). It
 * goes on alone, until there is the file STOP.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <snaprig_ckpt_plugin.h>

enum { HOUR = 3600, PORT = 1 };

/* What one end tells the other. */
struct end {
	volatile int is_there;
	uint32_t qp_num, rkey;
	uint64_t addr;
	uint16_t lid;
	union ibv_gid gid;
};

static struct end *ends;
static int own;
static const char *waits_file;
static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint64_t memory[2];

static void check(int is, const char *what)
{
	if (!is) {
		perror(what);
		exit(1);
	}
}

static int is_victim(void)
{
	return own == 1;
}

static int quiesce(snaprig_ckpt_event *event, void *data)
{
	(void)data;
	return is_victim() ? snaprig_ckpt_publish(event, "promised", 8, "", 0) : 0;
}

static int found(const void *key, size_t key_bytes, const void *value, size_t value_bytes, void *data)
{
	(void)key, (void)key_bytes, (void)value, (void)value_bytes, (void)data;
	return 1;
}

static int drain(snaprig_ckpt_event *event, void *data)
{
	(void)data;
	if (is_victim())
		sleep(HOUR);
	if (snaprig_ckpt_collect(event, "promised", 8, found, NULL) != 1)
		return 0;
	close(open(waits_file, O_WRONLY | O_CREAT, 0600));
	return snaprig_ckpt_lookup(event, "kept", 4, NULL) ? 0 : -1;
}

static void promise(void)
{
	struct snaprig_ckpt_plugin plugin = {.size = sizeof plugin, .name = "promise", .patience = HOUR, .quiesce = quiesce, .drain = drain};

	check(snaprig_ckpt_register(&plugin) >= 0, "snaprig_ckpt_register");
}

static void make(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = devices && *devices ? ibv_open_device(*devices) : NULL;
	struct ibv_pd *pd;
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	int flags = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	struct end *mine = &ends[own];

	check(!!context, "ibv_open_device");
	check(!!(pd = ibv_alloc_pd(context)), "ibv_alloc_pd");
	check(!!(mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)), "ibv_reg_mr");
	check(!!(cq = ibv_create_cq(context, 4, NULL, NULL, 0)), "ibv_create_cq");
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {4, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
	check(!!(qp = ibv_create_qp(pd, &init)), "ibv_create_qp");
	check(!ibv_modify_qp(qp, &attr, flags), "ibv_modify_qp (INIT)");
	check(!ibv_query_port(context, PORT, &port), "ibv_query_port");
	check(!ibv_query_gid(context, PORT, 0, &mine->gid), "ibv_query_gid");
	mine->qp_num = qp->qp_num;
	mine->rkey = mr->rkey;
	mine->addr = (uintptr_t)&memory[1];
	mine->lid = port.lid;
	__sync_synchronize();
	mine->is_there = 1;
}

static void meet(void)
{
	struct end *other = &ends[!own];

	while (!other->is_there)
		;
	__sync_synchronize();
	struct ibv_qp_attr ready = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = other->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {.dlid = other->lid, .port_num = PORT, .is_global = 1, .grh = {.dgid = other->gid, .hop_limit = 1}},
	};
	int flags = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	check(!ibv_modify_qp(qp, &ready, flags), "ibv_modify_qp (RTR)");
	struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	flags = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	check(!ibv_modify_qp(qp, &send, flags), "ibv_modify_qp (RTS)");
}

/* Whether the other end is there to be written to. */
static int writes(void)
{
	struct ibv_sge sge = {(uintptr_t)memory, sizeof *memory, mr->lkey};
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {ends[!own].addr, ends[!own].rkey},
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int got;

	memory[0]++;
	check(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	while (!(got = ibv_poll_cq(cq, 1, &wc)))
		;
	check(got == 1, "ibv_poll_cq");
	return wc.status == IBV_WC_SUCCESS;
}

int main(int count, char **arguments)
{
	check(count == 4, "ended STOP VICTIM WAITS");
	waits_file = arguments[3];
	ends = mmap(NULL, 2 * sizeof *ends, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(ends != MAP_FAILED, "mmap");
	signal(SIGCHLD, SIG_IGN);
	pid_t victim = fork();
	check(victim >= 0, "fork");
	own = !victim;
	promise();
	make();
	meet();
	/* Its number is there when it is at work. */
	if (victim) {
		for (int i = 0; i < 1000; i++)
			check(writes(), "a write");
		FILE *file = fopen(arguments[2], "w");
		check(file && fprintf(file, "%d", victim) > 0 && !fclose(file), "a file");
	}
	while (writes())
		;
	while (access(arguments[1], F_OK))
		usleep(1000);
	puts("all as it should be");
	return 0;
}
