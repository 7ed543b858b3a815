/*
 * Objects of verbs that outlive a checkpoint: processes of one program work with them, and look at every byte, until a file is there;
 * then they do so for some more rounds. What is expected of each round follows from its number alone.
 *   xrc      one connection, by which messages go to shared receive queues of two processes
 *   windows  writes through memory windows: bound once, bound again in each round, invalidated by a peer
 *   inline   long inline data; all is made in a parent domain
 *   events   who waits for an event finds one completion for it, not more and not fewer
 *   ledger   a peer writes all over memory of several kinds whose owner does nothing, and looks at all of it in the end
 *   chains   so many requests at once that some HCAs have no room for them, of which nobody polls before the last one is carried out
 * Who leads, and the others, may be on two machines: the one listens, and the others are told its address.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <infiniband/verbs.h>

enum { DEPTH = 32, PLACE = 1024, LAST_ROUNDS = 1000, PORT = 18520, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND };

static const char *stop_file, *domain_file;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint16_t lid;
static uint8_t buffer[DEPTH * 2][PLACE];

static void check(int is, const char *what)
{
	if (!is) {
		perror(what);
		exit(1);
	}
}

static void tell(int to, const void *what, size_t bytes)
{
	check(write(to, what, bytes) == (ssize_t)bytes, "write");
}

static void hear(int from, void *what, size_t bytes)
{
	for (size_t had = 0; had < bytes;) {
		ssize_t got = read(from, (char *)what + had, bytes - had);

		check(got > 0, "read");
		had += got;
	}
}

static void fill(uint8_t *at, uint64_t round, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		at[i] = (uint8_t)(round * 37 + i);
	memcpy(at, &round, sizeof round);
}

static void is_filled(const uint8_t *at, uint64_t round, size_t bytes, const char *what)
{
	static uint8_t expected[PLACE];

	fill(expected, round, bytes);
	if (memcmp(at, expected, bytes)) {
		uint64_t found;

		memcpy(&found, at, sizeof found);
		fprintf(stderr, "%s: in round %lu there is %lu\n", what, round, found);
		exit(1);
	}
}

static struct ibv_wc next(void)
{
	struct ibv_wc wc;
	int got;

	while (!(got = ibv_poll_cq(cq, 1, &wc)))
		;
	check(got == 1, "ibv_poll_cq");
	if (wc.status) {
		fprintf(stderr, "request %lu: %s\n", wc.wr_id, ibv_wc_status_str(wc.status));
		exit(1);
	}
	return wc;
}

static void open_all(int has_parent)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_port_attr port;

	check(list && list[0], "ibv_get_device_list");
	check(!!(context = ibv_open_device(list[0])), "ibv_open_device");
	check(!!(pd = ibv_alloc_pd(context)), "ibv_alloc_pd");
	check(!ibv_query_port(context, 1, &port), "ibv_query_port");
	lid = port.lid;
	if (has_parent) {
		struct ibv_td_init_attr of_thread = {0};
		struct ibv_td *td = ibv_alloc_td(context, &of_thread);
		struct ibv_parent_domain_init_attr of_parent = {.pd = pd, .td = td};

		check(!!td, "ibv_alloc_td");
		check(!!(pd = ibv_alloc_parent_domain(context, &of_parent)), "ibv_alloc_parent_domain");
		struct ibv_cq_init_attr_ex of_cq = {.cqe = 4 * DEPTH, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = pd};

		check(!!(cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &of_cq))), "ibv_create_cq_ex");
	} else {
		check(!!(cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)), "ibv_create_cq");
	}
	check(!!(mr = ibv_reg_mr(pd, buffer, sizeof buffer, ALL)), "ibv_reg_mr");
}

static void raise_to(struct ibv_qp *qp, uint32_t peer, uint16_t to, enum ibv_qp_state last)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 1,
				  .min_rnr_timer = 1, .ah_attr = {.dlid = to, .port_num = 1}};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	int receives = qp->qp_type == IBV_QPT_XRC_SEND ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

	check(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	check(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | receives), "RTR");
	if (last == IBV_QPS_RTS)
		check(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

/* A connection with the process at the other end of a socket. */
static struct ibv_qp *connected_with(int with, struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = cap};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	uint32_t own[2], other[2];

	check(!!qp, "ibv_create_qp");
	own[0] = qp->qp_num;
	own[1] = lid;
	tell(with, own, sizeof own);
	hear(with, other, sizeof other);
	raise_to(qp, other[0], other[1], IBV_QPS_RTS);
	tell(with, "", 1);
	hear(with, own, 1);
	return qp;
}

static struct ibv_qp *connected(int with, uint32_t inline_bytes)
{
	return connected_with(with, (struct ibv_qp_cap){DEPTH, DEPTH, 1, 1, inline_bytes});
}

static struct ibv_sge part(int place, uint32_t bytes)
{
	return (struct ibv_sge){(uintptr_t)buffer[place], bytes, mr->lkey};
}

/* How many rounds are left; some once the file is there. */
static int goes_on(void)
{
	static int left = -1;

	if (left < 0 && !access(stop_file, F_OK))
		left = LAST_ROUNDS;
	return left < 0 || left-- > 0;
}

static void post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int failed = ibv_post_send(qp, wr, &bad);

	if (failed) {
		fprintf(stderr, "ibv_post_send: %s\n", strerror(failed));
		exit(1);
	}
}

/* xrc */

static const uint64_t END = 1ull << 63;

static struct ibv_xrcd *shared_domain(const char *file)
{
	struct ibv_xrcd_init_attr init = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					  .fd = open(file, O_RDWR | O_CREAT, 0600), .oflags = O_CREAT};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &init);

	check(init.fd >= 0 && xrcd, "ibv_open_xrcd");
	close(init.fd);
	return xrcd;
}

static void receive(struct ibv_srq *srq, int place)
{
	struct ibv_sge sge = part(place, PLACE);
	struct ibv_recv_wr wr = {.wr_id = place, .sg_list = &sge, .num_sge = 1}, *bad;

	check(!ibv_post_srq_recv(srq, &wr, &bad), "ibv_post_srq_recv");
}

/* Messages of this shared queue come in order, by a queue pair that may be the other process's. */
static void take_all(struct ibv_srq *srq, uint32_t by)
{
	for (int place = 0; place < DEPTH / 2; place++)
		receive(srq, place);
	for (uint64_t round = 0;; round++) {
		struct ibv_wc wc = next();
		uint8_t *at = buffer[wc.wr_id];

		check(wc.qp_num == by, "the queue pair that a message came by");
		if (wc.byte_len == sizeof END)
			return;
		check(wc.byte_len == 600, "byte_len");
		is_filled(at, round, 600, "a shared receive queue");
		receive(srq, wc.wr_id);
	}
}

/* "first" has the queue pair, the second opens it. */
static void xrc_receiver(int sender, int other, int is_first, const char *file)
{
	open_all(0);
	struct ibv_xrcd *xrcd = shared_domain(file);
	struct ibv_srq_init_attr_ex of_srq = {
		.attr = {.max_wr = DEPTH, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ};
	struct ibv_srq *srq = ibv_create_srq_ex(context, &of_srq);
	struct ibv_qp_init_attr_ex of_qp = {.qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp *qp;
	uint32_t own[3] = {0}, peer[2];

	check(!!srq, "ibv_create_srq_ex");
	check(!ibv_get_srq_num(srq, &own[0]), "ibv_get_srq_num");
	if (is_first) {
		check(!!(qp = ibv_create_qp_ex(context, &of_qp)), "ibv_create_qp_ex");
		own[1] = qp->qp_num;
		own[2] = lid;
		tell(other, &qp->qp_num, sizeof qp->qp_num);
		tell(sender, own, sizeof own);
		hear(sender, peer, sizeof peer);
		raise_to(qp, peer[0], peer[1], IBV_QPS_RTR);
	} else {
		struct ibv_qp_open_attr attr = {.qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd,
			.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE};

		hear(other, &attr.qp_num, sizeof attr.qp_num);
		check(!!(qp = ibv_open_qp(context, &attr)), "ibv_open_qp");
		tell(sender, own, sizeof own);
	}
	tell(sender, "", 1);
	take_all(srq, qp->qp_num);
	tell(other, "", 1);
	hear(other, own, 1);
	if (!is_first)
		check(!ibv_destroy_qp(qp), "ibv_destroy_qp");
}

static void xrc_sender(int receivers[2])
{
	open_all(0);
	struct ibv_qp_init_attr_ex of_qp = {.qp_type = IBV_QPT_XRC_SEND, .pd = pd, .send_cq = cq, .comp_mask = IBV_QP_INIT_ATTR_PD,
					    .cap = {.max_send_wr = DEPTH, .max_send_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &of_qp);
	uint32_t first[3], second[3], own[2];
	int under_way = 0;
	char ready;

	check(!!qp, "ibv_create_qp_ex");
	own[0] = qp->qp_num;
	own[1] = lid;
	hear(receivers[0], first, sizeof first);
	tell(receivers[0], own, sizeof own);
	hear(receivers[1], second, sizeof second);
	raise_to(qp, first[1], first[2], IBV_QPS_RTS);
	hear(receivers[0], &ready, 1);
	hear(receivers[1], &ready, 1);
	uint32_t numbers[2] = {first[0], second[0]};

	for (uint64_t round = 0;; round++) {
		int is_last = !goes_on();

		for (int to = 0; to < 2; to++) {
			int place = (round * 2 + to) % DEPTH;
			struct ibv_sge sge = part(place, is_last ? sizeof END : 600);
			struct ibv_send_wr wr = {.wr_id = round, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};

			/* Every fourth asks for a completion. */
			if (is_last || (place & 3) == 3)
				wr.send_flags = IBV_SEND_SIGNALED;
			wr.qp_type.xrc.remote_srqn = numbers[to];
			fill(buffer[place], is_last ? END : round, 600);
			post(qp, &wr);
			under_way += !!wr.send_flags;
		}
		while (under_way > (is_last ? 0 : DEPTH / 4 - 2)) {
			next();
			under_way--;
		}
		if (is_last)
			return;
	}
}

/* windows */

enum { ONCE, AGAIN, NEXT, TAKEN, WINDOWS };

struct told {
	uint64_t round, base;
	uint32_t keys[WINDOWS];
};

static struct ibv_mw_bind_info at_window(int window)
{
	return (struct ibv_mw_bind_info){mr, (uintptr_t)buffer[window], PLACE, IBV_ACCESS_REMOTE_WRITE};
}

static void bind_1(struct ibv_qp *qp, struct ibv_mw *mw, int window)
{
	struct ibv_mw_bind bind = {.wr_id = window, .send_flags = IBV_SEND_SIGNALED, .bind_info = at_window(window)};

	check(!ibv_bind_mw(qp, mw, &bind), "ibv_bind_mw");
	check(next().opcode == IBV_WC_BIND_MW, "a binding");
}

static void bind_2(struct ibv_qp *qp, struct ibv_mw *mw, int window)
{
	struct ibv_send_wr wr = {.wr_id = window, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};

	mw->rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = mw->rkey;
	wr.bind_mw.bind_info = at_window(window);
	post(qp, &wr);
	check(next().opcode == IBV_WC_BIND_MW, "a binding");
}

static void windows_owner(int peer)
{
	static const enum ibv_mw_type types[WINDOWS] = {IBV_MW_TYPE_1, IBV_MW_TYPE_1, IBV_MW_TYPE_2, IBV_MW_TYPE_2};
	struct ibv_mw *mws[WINDOWS];
	struct told told;

	open_all(0);
	struct ibv_qp *qp = connected(peer, 0);

	for (int window = 0; window < WINDOWS; window++)
		check(!!(mws[window] = ibv_alloc_mw(pd, types[window])), "ibv_alloc_mw");
	bind_1(qp, mws[ONCE], ONCE);
	bind_2(qp, mws[NEXT], NEXT);
	for (uint64_t round = 0;; round++) {
		struct ibv_sge sge = part(WINDOWS, PLACE);
		struct ibv_recv_wr wr = {.wr_id = 99, .sg_list = &sge, .num_sge = 1}, *bad;
		int is_more;

		bind_1(qp, mws[AGAIN], AGAIN);
		bind_2(qp, mws[TAKEN], TAKEN);
		/* For long, this one stays as it is. */
		if (round % 512 == 511) {
			struct ibv_send_wr inv = {.opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED,
						  .invalidate_rkey = mws[NEXT]->rkey};

			post(qp, &inv);
			check(next().opcode == IBV_WC_LOCAL_INV, "an invalidation");
			bind_2(qp, mws[NEXT], NEXT);
		}
		check(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
		told.round = round;
		told.base = (uintptr_t)buffer;
		for (int window = 0; window < WINDOWS; window++)
			told.keys[window] = mws[window]->rkey;
		tell(peer, &told, sizeof told);
		struct ibv_wc wc = next();

		check(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == mws[TAKEN]->rkey, "the key that the peer invalidated");
		for (int window = 0; window < WINDOWS; window++)
			is_filled(buffer[window], round * WINDOWS + window, PLACE, "a window");
		hear(peer, &is_more, sizeof is_more);
		if (!is_more)
			break;
	}
	for (int window = 0; window < WINDOWS; window++)
		check(!ibv_dealloc_mw(mws[window]), "ibv_dealloc_mw");
	check(!ibv_dereg_mr(mr), "ibv_dereg_mr");
}

static void windows_writer(int peer)
{
	struct told told;
	int is_more = 1;

	open_all(0);
	struct ibv_qp *qp = connected(peer, 0);

	while (is_more) {
		struct ibv_sge none = part(WINDOWS, 8);
		struct ibv_send_wr last = {.sg_list = &none, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV,
					   .send_flags = IBV_SEND_SIGNALED};

		hear(peer, &told, sizeof told);
		for (int window = 0; window < WINDOWS; window++) {
			struct ibv_sge sge = part(window, PLACE);
			struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};

			fill(buffer[window], told.round * WINDOWS + window, PLACE);
			wr.wr.rdma.remote_addr = told.base + window * PLACE;
			wr.wr.rdma.rkey = told.keys[window];
			post(qp, &wr);
		}
		last.invalidate_rkey = told.keys[TAKEN];
		post(qp, &last);
		next();
		is_more = goes_on();
		tell(peer, &is_more, sizeof is_more);
	}
}

/* inline */

enum { INLINE = 1000 };

static void inline_receiver(int peer)
{
	open_all(1);
	struct ibv_qp *qp = connected(peer, INLINE);

	for (uint64_t round = 0, posted = 0;; round++) {
		for (; posted < round + DEPTH / 2; posted++) {
			struct ibv_sge sge = part(posted % (DEPTH / 2), PLACE);
			struct ibv_recv_wr wr = {.wr_id = posted % (DEPTH / 2), .sg_list = &sge, .num_sge = 1}, *bad;

			check(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
		}
		struct ibv_wc wc = next();

		if (wc.byte_len != INLINE)
			return;
		is_filled(buffer[wc.wr_id], round, INLINE, "inline data");
	}
}

static void inline_sender(int peer)
{
	int under_way = 0;

	open_all(1);
	struct ibv_qp *qp = connected(peer, INLINE);

	for (uint64_t round = 0;; round++) {
		int is_last = !goes_on();
		struct ibv_sge sge = part(0, is_last ? 8 : INLINE);
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE};

		if (is_last || round % 4 == 3)
			wr.send_flags |= IBV_SEND_SIGNALED;
		fill(buffer[0], round, INLINE);
		post(qp, &wr);
		/* It was taken when it was posted. */
		memset(buffer[0], 0xee, INLINE);
		under_way += !!(wr.send_flags & IBV_SEND_SIGNALED);
		for (; under_way > (is_last ? 0 : DEPTH / 4 - 2); under_way--)
			next();
		if (is_last)
			return;
	}
}

/* events */

/* One that others ask for the event of, and nobody of the rest: those are a checkpoint's to find out about. */
static void write_word(struct ibv_qp *qp, uint32_t rkey, int is_signaled)
{
	struct ibv_sge sge = part(1, sizeof(uint64_t));
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = is_signaled ? IBV_SEND_SIGNALED : 0,
				 .wr.rdma = {(uintptr_t)buffer[1], rkey}};

	post(qp, &wr);
}

static void events_receiver(int peer)
{
	open_all(0);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	uint32_t rkey;

	check(!!channel, "ibv_create_comp_channel");
	check(!!(cq = ibv_create_cq(context, 4 * DEPTH, NULL, channel, 0)), "ibv_create_cq");
	struct ibv_qp *qp = connected(peer, 0);

	hear(peer, &rkey, sizeof rkey);
	check(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	for (uint64_t round = 0, messages = 0;; round++) {
		int is_own = round % 8 == 7;
		struct ibv_sge sge = part(0, PLACE);
		struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
		struct ibv_cq *about;
		struct ibv_wc wc[2];
		void *of_cq;

		if (!is_own)
			check(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
		write_word(qp, rkey, is_own);
		if (!is_own)
			tell(peer, "", 1);
		check(!ibv_get_cq_event(channel, &about, &of_cq) && about == cq, "ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		/* As perftest does it: armed first, then looked once. In between there is time for a checkpoint. */
		usleep(200);
		check(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
		usleep(200);
		check(ibv_poll_cq(cq, 2, wc) == 1 && !wc->status, "one completion for an event");
		if (is_own)
			continue;
		if (wc->byte_len != PLACE)
			return;
		is_filled(buffer[0], messages++, PLACE, "a message with an event");
	}
}

static void events_sender(int peer)
{
	open_all(0);
	struct ibv_qp *qp = connected(peer, 0);

	tell(peer, &mr->rkey, sizeof mr->rkey);
	for (uint64_t message = 0;; message++) {
		int is_last = !goes_on();
		struct ibv_sge sge = part(0, is_last ? 8 : PLACE);
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
		char waits;

		hear(peer, &waits, 1);
		usleep(300);
		fill(buffer[0], message, PLACE);
		post(qp, &wr);
		next();
		if (is_last)
			return;
	}
}

/* ledger */

enum { KINDS = 3, ENTRIES = 1 << 15, ENTRY = 256 };

/* Where the owner has one, and what the writer has to know. */
struct area {
	uint64_t address;
	uint32_t rkey;
};

/* Private memory, shared memory, and a file's pages that have become its own. */
static uint8_t *area_of(int kind)
{
	size_t bytes = (size_t)ENTRIES * ENTRY;
	int file, id;
	void *at;

	switch (kind) {
	case 0:
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		break;
	case 1:
		check((id = shmget(IPC_PRIVATE, bytes, 0600)) >= 0, "shmget");
		at = shmat(id, NULL, 0);
		check(!shmctl(id, IPC_RMID, NULL), "IPC_RMID");
		break;
	default:
		check((file = open(domain_file, O_RDWR | O_CREAT, 0600)) >= 0 && !ftruncate(file, bytes), "a file");
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
		close(file);
	}
	check(at != MAP_FAILED, "memory");
	return at;
}

/* Which entry a round's is, of all kinds: each comes many times, in no order. */
static uint64_t entry_of(uint64_t round)
{
	return (round + 1) * 0x9e3779b97f4a7c15 >> 20 & (4 * ENTRIES - 1);
}

static void ledger_owner(int peer)
{
	uint8_t *areas[KINDS];
	struct area said[KINDS];
	uint64_t rounds;

	open_all(0);
	for (int kind = 0; kind < KINDS; kind++) {
		struct ibv_mr *of = ibv_reg_mr(pd, areas[kind] = area_of(kind), (size_t)ENTRIES * ENTRY, ALL);

		check(!!of, "ibv_reg_mr");
		said[kind] = (struct area){(uintptr_t)areas[kind], of->rkey};
	}
	connected(peer, 0);
	tell(peer, said, sizeof said);
	hear(peer, &rounds, sizeof rounds);

	uint64_t *last = calloc(4 * ENTRIES, sizeof *last);

	check(!!last, "calloc");
	for (uint64_t round = 0; round < rounds; round++)
		last[entry_of(round)] = round + 1;
	for (uint64_t entry = 0; entry < KINDS * ENTRIES; entry++)
		if (last[entry])
			is_filled(areas[entry / ENTRIES] + entry % ENTRIES * ENTRY, last[entry] - 1, ENTRY, "an entry");
}

static void ledger_writer(int peer)
{
	struct area areas[KINDS];
	uint64_t round = 0;

	open_all(0);

	struct ibv_qp *qp = connected(peer, 0);

	hear(peer, areas, sizeof areas);
	for (; goes_on(); round++) {
		uint64_t entry = entry_of(round);
		struct ibv_sge sge = part(0, ENTRY);

		if (entry >= KINDS * ENTRIES)
			continue;
		struct area to = areas[entry / ENTRIES];
		struct ibv_send_wr wr = {.wr_id = round, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					 .send_flags = IBV_SEND_SIGNALED,
					 .wr.rdma = {to.address + entry % ENTRIES * ENTRY, to.rkey}};

		fill(buffer[0], round, ENTRY);
		post(qp, &wr);
		next();
	}
	tell(peer, &round, sizeof round);
}

/* chains */

enum { CHAIN = 6000, ANSWER = CHAIN };

static volatile uint64_t words[CHAIN + 1];

/* The words are registered, and the peer's are there. */
static struct ibv_qp *chained(int peer, uint32_t *lkey, struct area *there)
{
	struct ibv_mr *of = ibv_reg_mr(pd, (void *)words, sizeof words, ALL);

	check(!!of, "ibv_reg_mr");
	struct area here = {(uintptr_t)words, of->rkey};
	struct ibv_qp *qp = connected_with(peer, (struct ibv_qp_cap){CHAIN, 1, 1, 1, 0});

	*lkey = of->lkey;
	tell(peer, &here, sizeof here);
	hear(peer, there, sizeof *there);
	return qp;
}

/* Words go to the peer in one chain. */
static void write_words(struct ibv_qp *qp, uint32_t lkey, struct area to, int first, int count)
{
	static struct ibv_sge parts[CHAIN];
	static struct ibv_send_wr chain[CHAIN];

	for (int i = 0; i < count; i++) {
		int is_last = i + 1 == count;

		parts[i] = (struct ibv_sge){(uintptr_t)&words[first + i], sizeof *words, lkey};
		chain[i] = (struct ibv_send_wr){.wr_id = first + i, .next = is_last ? NULL : &chain[i + 1], .sg_list = &parts[i],
						.num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = is_last ? IBV_SEND_SIGNALED : 0,
						.wr.rdma = {to.address + (first + i) * sizeof *words, to.rkey}};
	}
	post(qp, chain);
}

static void chains_owner(int peer)
{
	struct area there;
	uint32_t lkey;

	open_all(0);
	struct ibv_qp *qp = chained(peer, &lkey, &there);

	for (uint64_t round = 1; words[CHAIN - 1] != END; round++) {
		while (words[CHAIN - 1] < round)
			;
		uint64_t expected = words[CHAIN - 1] == END ? END : round;

		for (int i = 0; i < CHAIN; i++)
			check(words[i] == expected, "a word of a chain");
		words[ANSWER] = round;
		write_words(qp, lkey, there, ANSWER, 1);
		check(next().wr_id == ANSWER, "the answer's completion");
	}
}

static void chains_writer(int peer)
{
	struct area there;
	uint32_t lkey;
	int is_last = 0;

	open_all(0);
	struct ibv_qp *qp = chained(peer, &lkey, &there);

	for (uint64_t round = 1; !is_last; round++) {
		/* One of these is as much as many of others. */
		for (int i = 0; i < 20; i++)
			is_last |= !goes_on();
		for (int i = 0; i < CHAIN; i++)
			words[i] = is_last ? END : round;
		write_words(qp, lkey, there, 0, CHAIN);
		while (words[ANSWER] < round)
			;
		check(next().wr_id == CHAIN - 1, "one completion, of the last");
	}
}

static int sockets[3][2];

static void xrc_lead(int first)
{
	xrc_sender((int[]){first, sockets[1][0]});
}

static void first_receiver(int at)
{
	xrc_receiver(at, sockets[2][0], 1, domain_file);
}

static void second_receiver(int at)
{
	xrc_receiver(at, sockets[2][1], 0, domain_file);
}

/* What leads goes on until there is a file; each of the others has a socket to it. */
static const struct mode {
	const char *name;
	void (*lead)(int), (*others[2])(int);
} modes[] = {
	{"xrc", xrc_lead, {first_receiver, second_receiver}},
	{"windows", windows_writer, {windows_owner}},
	{"inline", inline_sender, {inline_receiver}},
	{"events", events_sender, {events_receiver}},
	{"ledger", ledger_writer, {ledger_owner}},
	{"chains", chains_writer, {chains_owner}},
};

static const struct mode *mode_of(const char *name)
{
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
		if (!strcmp(modes[i].name, name))
			return modes + i;
	fprintf(stderr, "%s: no such mode\n", name);
	exit(2);
}

static int is_other(const struct mode *mode, int number)
{
	return number < 2 && mode->others[number];
}

static void started(void (*work)(int), int at)
{
	int child = fork();

	check(child >= 0, "fork");
	if (!child) {
		work(at);
		exit(0);
	}
}

/* Sockets to another half, which is elsewhere: at this address, or, if there is none, whoever connects. */
static void reach(const struct mode *mode, const char *address)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
	int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;

	if (!address) {
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
		check(!bind(listener, (void *)&at, sizeof at) && !listen(listener, 2), "listen");
	}
	for (int i = 0; is_other(mode, i); i++) {
		if (address) {
			check(inet_pton(AF_INET, address, &at.sin_addr) == 1, address);
			sockets[i][1] = socket(AF_INET, SOCK_STREAM, 0);
			check(!connect(sockets[i][1], (void *)&at, sizeof at), "connect");
		} else {
			check((sockets[i][0] = accept(listener, NULL, NULL)) >= 0, "accept");
		}
	}
	close(listener);
}

int main(int argc, char **argv)
{
	check(argc == 4 || argc == 5, "objects xrc|windows|inline|events|ledger STOP-FILE FILE [listen|ADDRESS]");
	const struct mode *mode = mode_of(argv[1]);
	const char *half = argc == 5 ? argv[4] : NULL;
	int leads = !half || !strcmp(half, "listen"), status;

	stop_file = argv[2];
	domain_file = argv[3];
	for (int i = 0; i < 3; i++)
		check(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets[i]), "socketpair");
	if (half)
		reach(mode, leads ? NULL : half);
	for (int i = 0; is_other(mode, i) && (!half || !leads); i++)
		started(mode->others[i], sockets[i][1]);
	if (leads)
		mode->lead(sockets[0][0]);
	while (wait(&status) > 0)
		check(!status, "a process of it");
	printf("%s: all as it should be\n", argv[1]);
	return 0;
}
