/*
 * All HCAs of the fabric in one process: a reliable connection between each two of them, and of each
 * with itself, all of them busy at once, both ways; every byte is compared.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

enum { HCAS_MAX = 64, MESSAGES = 32, BYTES = 3000 };

struct hca {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_port_attr port;
};

/* One end of a connection: what it sends, then what it receives. */
struct end {
	struct hca *hca;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char (*buffer)[MESSAGES][BYTES];
	unsigned char seed;
};

static struct hca hcas[HCAS_MAX];

static void *must(void *made, const char *what)
{
	if (!made) {
		perror(what);
		exit(1);
	}
	return made;
}

static void zero(int result, const char *what)
{
	if (result) {
		printf("%s: %d\n", what, result);
		exit(1);
	}
}

static unsigned char byte(unsigned char seed, int message, int at)
{
	return seed + message * 3 + at * 5;
}

static void make(struct end *end, struct hca *hca, unsigned char seed)
{
	struct ibv_qp_init_attr init = {
		.send_cq = hca->cq,
		.recv_cq = hca->cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = { MESSAGES, MESSAGES, 1, 1, 0 },
	};
	size_t size = 2 * sizeof(*end->buffer);

	end->hca = hca;
	end->seed = seed;
	end->buffer = must(calloc(1, size), "memory");
	end->mr = must(ibv_reg_mr(hca->pd, end->buffer, size, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
	end->qp = must(ibv_create_qp(hca->pd, &init), "ibv_create_qp");
}

static void connect_to(struct end *end, struct end *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	zero(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			   IBV_QP_ACCESS_FLAGS), "INIT");
	for (int i = 0; i < MESSAGES; i++) {
		struct ibv_sge sge = { (uintptr_t)end->buffer[1][i], BYTES, end->mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

		zero(ibv_post_recv(end->qp, &wr, &bad), "ibv_post_recv");
	}
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer->qp->qp_num;
	attr.ah_attr.dlid = peer->hca->port.lid;
	attr.ah_attr.port_num = 1;
	attr.max_dest_rd_atomic = 1;
	zero(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			   IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			   IBV_QP_MIN_RNR_TIMER), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	zero(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			   IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void send_message(struct end *end, int message)
{
	struct ibv_sge sge = { (uintptr_t)end->buffer[0][message], BYTES, end->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	for (int at = 0; at < BYTES; at++)
		end->buffer[0][message][at] = byte(end->seed, message, at);
	zero(ibv_post_send(end->qp, &wr, &bad), "ibv_post_send");
}

static void check(struct end *end, struct end *peer)
{
	for (int message = 0; message < MESSAGES; message++)
		for (int at = 0; at < BYTES; at++)
			if (end->buffer[1][message][at] != byte(peer->seed, message, at)) {
				printf("message %d is wrong at %d\n", message, at);
				exit(1);
			}
}

int main(void)
{
	static struct end ends[HCAS_MAX * (HCAS_MAX + 1)];
	struct ibv_device **list;
	int count, pairs = 0;

	list = must(ibv_get_device_list(&count), "ibv_get_device_list");
	for (int i = 0; i < count; i++) {
		struct hca *hca = &hcas[i];

		hca->context = must(ibv_open_device(list[i]), "ibv_open_device");
		hca->pd = must(ibv_alloc_pd(hca->context), "ibv_alloc_pd");
		hca->cq = must(ibv_create_cq(hca->context, 4 * MESSAGES * (count + 1), NULL, NULL, 0),
			       "ibv_create_cq");
		zero(ibv_query_port(hca->context, 1, &hca->port), "ibv_query_port");
	}
	ibv_free_device_list(list);
	for (int i = 0; i < count; i++)
		for (int j = i; j < count; j++, pairs++) {
			make(&ends[2 * pairs], &hcas[i], 2 * pairs);
			make(&ends[2 * pairs + 1], &hcas[j], 2 * pairs + 1);
		}
	for (int i = 0; i < 2 * pairs; i++)
		connect_to(&ends[i], &ends[i ^ 1]);
	for (int message = 0; message < MESSAGES; message++)
		for (int i = 0; i < 2 * pairs; i++)
			send_message(&ends[i], message);
	/* A send and a receive of each end, at the queue of its HCA. */
	for (int left = 2 * pairs * 2 * MESSAGES; left;)
		for (int i = 0; i < count; i++) {
			struct ibv_wc wc[16];
			int got = ibv_poll_cq(hcas[i].cq, 16, wc);

			for (int at = 0; at < got; at++)
				zero(wc[at].status, ibv_wc_status_str(wc[at].status));
			left -= got;
		}
	for (int i = 0; i < 2 * pairs; i++)
		check(&ends[i], &ends[i ^ 1]);
	for (int i = 0; i < 2 * pairs; i++) {
		zero(ibv_destroy_qp(ends[i].qp), "ibv_destroy_qp");
		zero(ibv_dereg_mr(ends[i].mr), "ibv_dereg_mr");
		free(ends[i].buffer);
	}
	for (int i = 0; i < count; i++) {
		zero(ibv_destroy_cq(hcas[i].cq), "ibv_destroy_cq");
		zero(ibv_dealloc_pd(hcas[i].pd), "ibv_dealloc_pd");
		zero(ibv_close_device(hcas[i].context), "ibv_close_device");
	}
	printf("%d HCAs, %d pairs\n", count, pairs);
	return 0;
}
