/*
 * Two queue pairs by the P_Key table that the caller gave the fabric:
 *   0: ffff  1: 8001  2: 0001 (limited)  3: 8002
 * Who is in one partition talks, unless both are limited members; else a packet is dropped without a
 * word, and counted (InfiniBand Architecture 1, 10.9.3).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

enum { BYTES = 64 + 40, QKEY = 0x1234 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_port_attr port;
static char buffer[2][BYTES];

static void check(int is, const char *what)
{
	if (!is) {
		perror(what);
		exit(1);
	}
}

static struct ibv_qp *make(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1,
		.cap = { 4, 4, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	check(!!qp, "ibv_create_qp");
	return qp;
}

static void ready(struct ibv_qp *qp, struct ibv_qp *peer, int pkey_index)
{
	int ud = qp->qp_type == IBV_QPT_UD;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .pkey_index = pkey_index, .qkey = QKEY,
	};

	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			     (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer->qp_num;
	attr.ah_attr.dlid = port.lid;
	attr.ah_attr.port_num = 1;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | (ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU |
			     IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			     IBV_QP_MIN_RNR_TIMER)), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 8;
	attr.retry_cnt = 1;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (ud ? 0 : IBV_QP_TIMEOUT |
			     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)), "RTS");
}

/* A message from a queue pair of one index to one of another: what became of its send and receive. */
static void talk(enum ibv_qp_type type, int from, int to)
{
	struct ibv_qp *a = make(type), *b = make(type);
	struct ibv_sge in = { (uintptr_t)buffer[0], BYTES, mr->lkey };
	struct ibv_sge out = { (uintptr_t)buffer[1], 64, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &in, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_ah_attr to_port = { .dlid = port.lid, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(pd, &to_port);
	struct ibv_port_attr after;
	const char *sent = NULL, *received = "nothing";
	struct ibv_wc wc;

	check(!!ah, "ibv_create_ah");
	ready(a, b, from);
	ready(b, a, to);
	check(!ibv_query_port(context, 1, &port), "ibv_query_port");
	check(!ibv_post_recv(b, &recv, &bad_recv), "ibv_post_recv");
	if (type == IBV_QPT_UD) {
		send.wr.ud.ah = ah;
		send.wr.ud.remote_qpn = b->qp_num;
		send.wr.ud.remote_qkey = QKEY;
	}
	check(!ibv_post_send(a, &send, &bad), "ibv_post_send");
	/* A datagram arrives as it is sent, if it does. */
	while (!sent || ibv_poll_cq(cq, 1, &wc)) {
		if (!sent && !ibv_poll_cq(cq, 1, &wc))
			continue;
		if (wc.wr_id)
			received = ibv_wc_status_str(wc.status);
		else
			sent = ibv_wc_status_str(wc.status);
	}
	check(!ibv_query_port(context, 1, &after), "ibv_query_port");
	printf("%s %d to %d: sent: %s; received: %s; %s\n", type == IBV_QPT_UD ? "UD" : "RC", from, to,
	       sent, received, after.bad_pkey_cntr == port.bad_pkey_cntr ? "none is bad" : "counted");
	ibv_destroy_ah(ah);
	ibv_destroy_qp(a);
	ibv_destroy_qp(b);
}

int main(void)
{
	static const int pairs[][2] = { {0, 0}, {1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 3}, {0, 4} };
	struct ibv_device **list = ibv_get_device_list(NULL);

	context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	check(!!context, "a device");
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	check(pd && cq && mr && !ibv_query_port(context, 1, &port), "what is needed");
	printf("0x8002 is at %d\n", ibv_get_pkey_index(context, 1, htobe16(0x8002)));
	for (unsigned i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
		talk(IBV_QPT_RC, pairs[i][0], pairs[i][1]);
		talk(IBV_QPT_UD, pairs[i][0], pairs[i][1]);
	}
	return 0;
}
