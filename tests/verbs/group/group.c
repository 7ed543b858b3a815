/*
 * A multicast group with members in several processes: one leads, and says in each round something to the group; every other queue
 * pair of the group answers to where that came from. Each has to hear everything that is said once, in order, with a route header that
 * says whose it is and for which group; what answers is looked at as well.
 *   group lead PROCESSES ROUNDS PACE_US     of so many processes, itself included
 *   group follow
 * In the first round it is said again until all have come; later that is counted, and only after a loss.
 */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>

/* SPEAKER and MEMBER are in the group; STRANGER is, too, with another Q_Key; LEAVER has been. */
enum { SPEAKER, MEMBER, STRANGER, LEAVER, QPS };
enum { DEPTH = 128, GRH = 40, PLACE = 128, MEMBERS_MAX = 64, MULTICAST_QPN = 0xffffff, MULTICAST_LID = 0xc123, QKEY = 0x1234 };
/* As long as not all have come; and later, when an answer that takes so long is lost. */
enum { COME_MS = 50, LOST_MS = 3000 };

struct said {
	uint64_t round, number; /* a number is said once */
	union ibv_gid gid;
	uint32_t qpn;
	uint16_t lid;
};

static const uint64_t LAST_ROUND = UINT64_MAX;
static const union ibv_gid group = {.raw = {0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, [15] = 9}};

static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *receives, *sends;
static struct ibv_mr *mr;
static struct ibv_qp *qps[QPS];
static struct ibv_port_attr port;
static union ibv_gid gid;
static uint8_t places[QPS * DEPTH + 1][PLACE];
static uint64_t heard[QPS];

static void check(int is, const char *what)
{
	if (!is) {
		perror(what);
		exit(1);
	}
}

static void wrong(const char *what, const struct said *said)
{
	fprintf(stderr, "%s: number %lu of round %lu\n", what, said->number, said->round);
	exit(1);
}

static void post_receive(uint64_t place)
{
	struct ibv_sge sge = {(uintptr_t)places[place], PLACE, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = place, .sg_list = &sge, .num_sge = 1}, *bad;

	check(!ibv_post_recv(qps[place / DEPTH], &wr, &bad), "ibv_post_recv");
}

static struct ibv_qp *made(uint32_t qkey)
{
	struct ibv_qp_init_attr init = {.send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_UD, .cap = {8, DEPTH, 1, 1, 0}};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	check(!!qp, "ibv_create_qp");
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
	return qp;
}

static void open_all(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_wc wc;

	check(list && list[0], "ibv_get_device_list");
	check(!!(context = ibv_open_device(list[0])), "ibv_open_device");
	check(!ibv_query_port(context, 1, &port) && !ibv_query_gid(context, 1, 0, &gid), "ibv_query_port");
	check(!!(pd = ibv_alloc_pd(context)), "ibv_alloc_pd");
	check(!!(channel = ibv_create_comp_channel(context)), "ibv_create_comp_channel");
	check(!!(receives = ibv_create_cq(context, QPS * DEPTH, NULL, channel, 0)), "ibv_create_cq");
	check(!!(sends = ibv_create_cq(context, DEPTH, NULL, NULL, 0)), "ibv_create_cq");
	check(!!(mr = ibv_reg_mr(pd, places, sizeof places, IBV_ACCESS_LOCAL_WRITE)), "ibv_reg_mr");
	for (int i = 0; i < QPS; i++) {
		qps[i] = made(i == STRANGER ? QKEY + 1 : QKEY);
		for (int at = 0; at < DEPTH; at++)
			post_receive(i * DEPTH + at);
	}
	check(!ibv_attach_mcast(qps[LEAVER], &group, MULTICAST_LID), "ibv_attach_mcast");
	check(!ibv_detach_mcast(qps[LEAVER], &group, MULTICAST_LID), "ibv_detach_mcast");
	/* What was said between the two is its, and nobody else is in the group yet. */
	while (ibv_poll_cq(receives, 1, &wc) == 1)
		;
	for (int i = 0; i < LEAVER; i++)
		check(!ibv_attach_mcast(qps[i], &group, MULTICAST_LID), "ibv_attach_mcast");
}

static void send_to(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, uint64_t round, uint64_t number)
{
	struct said said = {.round = round, .number = number, .gid = gid, .qpn = qp->qp_num, .lid = port.lid};
	uint8_t *place = places[QPS * DEPTH];
	struct ibv_sge sge = {(uintptr_t)place, sizeof said, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_wc wc;
	int got;

	memcpy(place, &said, sizeof said);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = QKEY;
	check(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	while (!(got = ibv_poll_cq(sends, 1, &wc)))
		;
	check(got == 1 && wc.status == IBV_WC_SUCCESS, "a send");
}

/* The next that comes within so long, if anything does. */
static int next(struct ibv_wc *wc, int timeout_ms)
{
	struct pollfd wait = {.fd = channel->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *context;

	for (;;) {
		if (ibv_poll_cq(receives, 1, wc) == 1)
			break;
		check(!ibv_req_notify_cq(receives, 0), "ibv_req_notify_cq");
		if (ibv_poll_cq(receives, 1, wc) == 1)
			break;
		if (!poll(&wait, 1, timeout_ms))
			return 0;
		if (wait.revents & POLLIN) {
			check(!ibv_get_cq_event(channel, &cq, &context), "ibv_get_cq_event");
			ibv_ack_cq_events(cq, 1);
		}
	}
	check(wc->status == IBV_WC_SUCCESS, "a receive");
	return 1;
}

/* What came: it is as long as it should be, and of whom it says. */
static struct said taken(const struct ibv_wc *wc)
{
	struct said said;

	memcpy(&said, places[wc->wr_id] + GRH, sizeof said);
	if (wc->byte_len != GRH + sizeof said)
		wrong("its length", &said);
	if (wc->src_qp != said.qpn || wc->slid != said.lid)
		wrong("it is somebody else's", &said);
	return said;
}

/* What is said to the group came to a queue pair, which answers. */
static struct said answer(struct ibv_wc *wc)
{
	struct said said = taken(wc);
	struct ibv_grh *grh = (struct ibv_grh *)places[wc->wr_id];
	int to = wc->wr_id / DEPTH;
	struct ibv_ah *ah;

	if (to == STRANGER || to == LEAVER)
		wrong("it came to who is not to have it", &said);
	if (said.number <= heard[to])
		wrong("it came twice, or late", &said);
	heard[to] = said.number;
	if (!(wc->wc_flags & IBV_WC_GRH) || memcmp(&grh->sgid, &said.gid, sizeof gid) || memcmp(&grh->dgid, &group, sizeof group))
		wrong("its route header", &said);
	check(!!(ah = ibv_create_ah_from_wc(pd, wc, grh, 1)), "ibv_create_ah_from_wc");
	send_to(qps[to], ah, wc->src_qp, said.round, said.number);
	check(!ibv_destroy_ah(ah), "ibv_destroy_ah");
	post_receive(wc->wr_id);
	return said;
}

static void follow(void)
{
	struct ibv_wc wc;

	for (int left = 1 << SPEAKER | 1 << MEMBER; left;)
		if (next(&wc, -1) && answer(&wc).round == LAST_ROUND)
			left &= ~(1 << wc.wr_id / DEPTH);
}

/* Who has answered, and to which number last. */
static struct {
	uint32_t qpn;
	uint16_t lid;
	uint64_t number;
} members[MEMBERS_MAX];

static void answered(const struct ibv_wc *wc)
{
	struct said said = taken(wc);
	int at = 0;

	while (members[at].qpn && (members[at].qpn != said.qpn || members[at].lid != said.lid))
		check(++at < MEMBERS_MAX, "too many members");
	if (said.number <= members[at].number)
		wrong("it was answered twice, or late", &said);
	members[at].qpn = said.qpn;
	members[at].lid = said.lid;
	members[at].number = said.number;
	post_receive(wc->wr_id);
}

/* How many have answered to a number from this one on. */
static int count_from(uint64_t number)
{
	int count = 0;

	for (int at = 0; at < MEMBERS_MAX; at++)
		count += members[at].qpn && members[at].number >= number;
	return count;
}

static void lead(int count, uint64_t rounds, int pace_us)
{
	struct ibv_ah_attr attr = {.dlid = MULTICAST_LID, .is_global = 1, .port_num = 1, .grh = {.dgid = group, .hop_limit = 1}};
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	uint64_t number = 0, again = 0;
	struct ibv_wc wc;

	check(!!ah, "ibv_create_ah");
	for (uint64_t round = 0; round <= rounds; round++) {
		uint64_t first = number + 1;

		send_to(qps[SPEAKER], ah, MULTICAST_QPN, round == rounds ? LAST_ROUND : round, ++number);
		while (count_from(first) < count) {
			if (!next(&wc, round ? LOST_MS : COME_MS)) {
				again += round > 0;
				send_to(qps[SPEAKER], ah, MULTICAST_QPN, round == rounds ? LAST_ROUND : round, ++number);
			} else if (wc.wr_id / DEPTH == SPEAKER) {
				answered(&wc);
			} else {
				answer(&wc);
			}
		}
		if (round < rounds)
			printf("iteration %lu\n", round);
		fflush(stdout);
		usleep(pace_us);
	}
	printf("%d members, %lu rounds, %lu said again\n", count_from(1), rounds, again);
}

int main(int argc, char **argv)
{
	open_all();
	if (argc == 5)
		lead(2 * atoi(argv[2]) - 1, strtoul(argv[3], NULL, 10), atoi(argv[4]));
	else
		follow();
	return 0;
}
