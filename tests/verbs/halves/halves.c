/*
 * Connections of rdma_cm that are half made when a checkpoint comes: two processes go so far, and stay there until a file is there;
 * then they go on, and send messages.
 *   address    an address was asked for, and nobody has looked whether it is known
 *   route      the same of a route
 *   request    a connection was asked for, and nobody has heard of that
 *   accept     it was heard of, and not accepted yet
 *   answer     it was accepted, and who has asked has not heard of that
 *   datagrams  as accept, of an id of datagrams
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

enum { MESSAGES = 200, BYTES = 512, GRH = 40 };

static const char *mode, *stop_file;
static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static struct ibv_mr *mr;
static uint8_t buffer[GRH + BYTES];
static int peer;

static void check(int is, const char *what)
{
	if (!is) {
		perror(what);
		exit(1);
	}
}

static int is(const char *other)
{
	return !strcmp(mode, other);
}

static void tell(uint16_t word)
{
	check(write(peer, &word, sizeof word) == sizeof word, "write");
}

static uint16_t hear(void)
{
	uint16_t word;

	check(read(peer, &word, sizeof word) == sizeof word, "read");
	return word;
}

/* Until a checkpoint was taken. */
static void stay(void)
{
	while (access(stop_file, F_OK))
		;
}

static struct rdma_conn_param expect(enum rdma_cm_event_type kind, struct rdma_cm_id **of)
{
	static struct ibv_ah_attr address;
	struct rdma_cm_event *event;
	struct rdma_conn_param param;

	check(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	if (event->event != kind) {
		fprintf(stderr, "%s: %s (%d) instead of %s\n", mode, rdma_event_str(event->event), event->status, rdma_event_str(kind));
		exit(1);
	}
	param = event->param.conn;
	if (is("datagrams")) {
		/* Whom to send to: what the other union says, where there is room for it. */
		address = event->param.ud.ah_attr;
		param.private_data = &address;
		param.qp_num = event->param.ud.qp_num;
	}
	if (of)
		*of = event->id;
	check(!rdma_ack_cm_event(event), "rdma_ack_cm_event");
	return param;
}

static void make_queue_pair(void)
{
	struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .qp_type = is("datagrams") ? IBV_QPT_UD : IBV_QPT_RC, .sq_sig_all = 1};

	check(!rdma_create_qp(id, NULL, &init), "rdma_create_qp");
	check(!!(mr = ibv_reg_mr(id->pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE)), "ibv_reg_mr");
}

static void take(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int got;

	while (!(got = ibv_poll_cq(cq, 1, &wc)))
		;
	check(got == 1, "ibv_poll_cq");
	if (wc.status) {
		fprintf(stderr, "%s: %s\n", mode, ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static void receive(void)
{
	struct ibv_sge sge = {(uintptr_t)buffer, sizeof buffer, mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

	check(!ibv_post_recv(id->qp, &wr, &bad), "ibv_post_recv");
}

static void server(void)
{
	struct rdma_cm_id *listener;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .private_data = "yes", .private_data_len = 4};
	const uint8_t *start = is("datagrams") ? buffer + GRH : buffer;

	check(!rdma_create_id(channel, &listener, NULL, is("datagrams") ? RDMA_PS_UDP : RDMA_PS_TCP), "rdma_create_id");
	check(!rdma_bind_addr(listener, (struct sockaddr *)&address), "rdma_bind_addr");
	check(!rdma_listen(listener, 4), "rdma_listen");
	tell(rdma_get_src_port(listener));
	if (is("request")) {
		hear();
		stay();
	}
	expect(RDMA_CM_EVENT_CONNECT_REQUEST, &id);
	make_queue_pair();
	receive();
	if (is("accept") || is("datagrams"))
		stay();
	if (is("datagrams"))
		param.qp_num = id->qp->qp_num;
	check(!rdma_accept(id, &param), "rdma_accept");
	if (is("answer")) {
		tell(0);
		stay();
	}
	if (!is("datagrams"))
		expect(RDMA_CM_EVENT_ESTABLISHED, NULL);
	for (int message = 0; message < MESSAGES; message++) {
		take(id->recv_cq);
		for (int at = 0; at < BYTES; at++)
			check(start[at] == (uint8_t)(message + at), "a message");
		receive();
		tell(message);
	}
}

static void client(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = hear()};
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7,
					.private_data = "please", .private_data_len = 7};
	struct ibv_send_wr wr = {.num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	struct ibv_sge sge = {(uintptr_t)buffer, BYTES};

	check(!rdma_create_id(channel, &id, NULL, is("datagrams") ? RDMA_PS_UDP : RDMA_PS_TCP), "rdma_create_id");
	check(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000), "rdma_resolve_addr");
	if (is("address"))
		stay();
	expect(RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	check(!rdma_resolve_route(id, 2000), "rdma_resolve_route");
	if (is("route"))
		stay();
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	make_queue_pair();
	check(!rdma_connect(id, &param), "rdma_connect");
	if (is("request"))
		tell(0);
	if (is("answer")) {
		hear();
		stay();
	}
	param = expect(RDMA_CM_EVENT_ESTABLISHED, NULL);
	if (is("datagrams")) {
		check(!!(wr.wr.ud.ah = ibv_create_ah(id->pd, (struct ibv_ah_attr *)param.private_data)), "ibv_create_ah");
		wr.wr.ud.remote_qpn = param.qp_num;
		wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
	}
	sge.lkey = mr->lkey;
	wr.sg_list = &sge;
	for (int message = 0; message < MESSAGES; message++) {
		for (int at = 0; at < BYTES; at++)
			buffer[at] = (uint8_t)(message + at);
		check(!ibv_post_send(id->qp, &wr, &bad), "ibv_post_send");
		take(id->send_cq);
		check(hear() == message, "who has had it");
	}
}

int main(int argc, char **argv)
{
	int ends[2], status, child;

	check(argc == 4, "halves address|route|request|accept|answer|datagrams STOP-FILE FILE");
	mode = argv[1];
	stop_file = argv[2];
	check(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends), "socketpair");
	check((child = fork()) >= 0, "fork");
	peer = ends[!child];
	check(!!(channel = rdma_create_event_channel()), "rdma_create_event_channel");
	if (!child) {
		client();
		return 0;
	}
	server();
	check(wait(&status) == child && !status, "the client");
	printf("%s: all as it should be\n", mode);
	return 0;
}
