/* A client that asks for a connection before its server listens, as one does that is told the server's port too early;
 * and one whose server never does. */
#include <rdma/rdma_cma.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

static void must(int is, const char *what)
{
	if (!is) {
		perror(what);
		exit(1);
	}
}

/* The next event of a channel; what it is about, if that is to be known. */
static enum rdma_cm_event_type next(struct rdma_event_channel *channel, struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;
	must(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
	enum rdma_cm_event_type type = event->event;
	if (id)
		*id = event->id;
	rdma_ack_cm_event(event);
	return type;
}

int main(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_event_channel *servers = rdma_create_event_channel();
	struct rdma_event_channel *clients = rdma_create_event_channel();
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	for (int listens = 1; listens >= 0; listens--) {
		struct rdma_cm_id *server, *client, *asked;
		must(rdma_create_id(servers, &server, NULL, RDMA_PS_TCP) == 0, "server");
		must(rdma_create_id(clients, &client, NULL, RDMA_PS_TCP) == 0, "client");
		at.sin_port = 0;
		must(rdma_bind_addr(server, (struct sockaddr *)&at) == 0, "bind");
		at.sin_port = rdma_get_src_port(server);
		must(rdma_resolve_addr(client, NULL, (struct sockaddr *)&at, 1000) == 0, "resolve_addr");
		must(next(clients, NULL) == RDMA_CM_EVENT_ADDR_RESOLVED, "address");
		must(rdma_resolve_route(client, 1000) == 0, "resolve_route");
		must(next(clients, NULL) == RDMA_CM_EVENT_ROUTE_RESOLVED, "route");
		struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
		must(rdma_create_qp(client, NULL, &attr) == 0, "client's queue pair");
		must(rdma_connect(client, &param) == 0, "connect");
		if (!listens) {
			must(next(clients, NULL) == RDMA_CM_EVENT_REJECTED, "rejected");
			puts("rejected");
			rdma_destroy_qp(client);
			rdma_destroy_id(client);
			rdma_destroy_id(server);
			continue;
		}
		must(rdma_listen(server, 1) == 0, "listen");
		must(next(servers, &asked) == RDMA_CM_EVENT_CONNECT_REQUEST, "request");
		must(rdma_create_qp(asked, NULL, &attr) == 0, "server's queue pair");
		must(rdma_accept(asked, &param) == 0, "accept");
		must(next(clients, NULL) == RDMA_CM_EVENT_ESTABLISHED, "client is connected");
		must(next(servers, NULL) == RDMA_CM_EVENT_ESTABLISHED, "server is connected");
		puts("connected");
		must(rdma_disconnect(client) == 0, "disconnect");
		must(next(servers, NULL) == RDMA_CM_EVENT_DISCONNECTED, "server hears of it");
		rdma_destroy_qp(client);
		rdma_destroy_id(client);
		rdma_destroy_qp(asked);
		rdma_destroy_id(asked);
		rdma_destroy_id(server);
	}
	/* Its own end: it asks no more. */
	struct rdma_cm_id *client;
	must(rdma_create_id(clients, &client, NULL, RDMA_PS_TCP) == 0, "client");
	must(rdma_resolve_addr(client, NULL, (struct sockaddr *)&at, 1000) == 0, "resolve_addr");
	while (next(clients, NULL) != RDMA_CM_EVENT_ADDR_RESOLVED)
		;
	must(rdma_resolve_route(client, 1000) == 0, "resolve_route");
	while (next(clients, NULL) != RDMA_CM_EVENT_ROUTE_RESOLVED)
		;
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	must(rdma_create_qp(client, NULL, &attr) == 0, "client's queue pair");
	must(rdma_connect(client, &param) == 0, "connect");
	rdma_destroy_qp(client);
	must(rdma_destroy_id(client) == 0, "it is gone");
	rdma_destroy_event_channel(clients);
	rdma_destroy_event_channel(servers);
	puts("gone");
	return 0;
}
