/* SCIF between cards, through the ioctls of the mic driver (Linux uapi scif_ioctl.h), and what else one
   card might do to another.
   mesh NODE CARDS...   exchanges a stream with each other card at once, when a line comes on stdin
   hold                 accepts connections, and says nothing
   watch NODE           connects to that card's `hold`, and waits to be told that it is gone
   hog                  takes memory until there is none, and keeps it until a line comes on stdin
   write PATH, exists PATH */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SCIF_BIND 0xc0087301
#define SCIF_LISTEN 0x40047302
#define SCIF_CONNECT 0xc0087303
#define SCIF_ACCEPTREQ 0xc0107304
#define SCIF_ACCEPTREG 0xc0087305
#define SCIF_SEND 0xc0187306
#define SCIF_RECV 0xc0187307

enum { PORT = 2000, BYTES = 96 << 10, PART = 5000, BLOCK = 1 };

struct connect { uint16_t own[2], peer[2]; };
struct accept { int32_t flags; uint16_t peer[2]; uint64_t endpoint; };
struct message { uint64_t address; int32_t len, flags, out_len; };

static void check(int good, const char *what)
{
    if (good)
        return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static int endpoint(void)
{
    int fd = open("/dev/mic/scif", O_RDWR);
    check(fd >= 0, "open");
    return fd;
}

static int transfer(int fd, unsigned long request, unsigned char *data, int len)
{
    while (len > 0) {
        struct message message = { (uintptr_t)data, len < PART ? len : PART, BLOCK, 0 };
        if (ioctl(fd, request, &message) < 0)
            return -1;
        data += message.out_len;
        len -= message.out_len;
    }
    return 0;
}

static void fill(unsigned char *data, int from, int to)
{
    uint32_t state = from * 1000003u + to + 1;
    for (int i = 0; i < BYTES; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = state >> 24;
    }
}

/* Who connected sends first. */
static void exchange(int fd, int own, int peer, int first)
{
    static unsigned char data[BYTES], expected[BYTES];
    for (int turn = 0; turn < 2; turn++) {
        if (turn == !first) {
            fill(data, own, peer);
            check(!transfer(fd, SCIF_SEND, data, BYTES), "send");
        } else {
            fill(expected, peer, own);
            check(!transfer(fd, SCIF_RECV, data, BYTES), "receive");
            check(!memcmp(data, expected, BYTES), "not what was sent");
        }
    }
    exit(0);
}

static int connected(int peer, int port)
{
    int fd = endpoint();
    struct connect connect = { { 0, 0 }, { peer, port } };
    check(!ioctl(fd, SCIF_CONNECT, &connect), "connect");
    return fd;
}

static int listening(uint64_t port)
{
    int fd = endpoint();
    check(!ioctl(fd, SCIF_BIND, &port), "bind");
    check(!ioctl(fd, SCIF_LISTEN, 16), "listen");
    puts("ready");
    fflush(stdout);
    return fd;
}

static int accepted(int listener, int *peer)
{
    struct accept accept = { BLOCK, { 0, 0 }, 0 };
    check(!ioctl(listener, SCIF_ACCEPTREQ, &accept), "accept");
    int fd = endpoint();
    check(!ioctl(fd, SCIF_ACCEPTREG, &accept.endpoint), "claim");
    *peer = accept.peer[0];
    return fd;
}

static int mesh(int own, int cards, char **peers)
{
    int listener = listening(PORT), children = 0, failed = 0, status;
    check(getchar() != EOF, "no order");
    for (int i = 0; i < cards; i++) {
        int peer = atoi(peers[i]);
        if (peer <= own)
            continue;
        children++;
        if (!fork())
            exchange(connected(peer, PORT), own, peer, 1);
    }
    for (int i = 0; i < cards; i++) {
        if (atoi(peers[i]) >= own)
            continue;
        int peer, fd = accepted(listener, &peer);
        children++;
        if (!fork())
            exchange(fd, own, peer, 0);
        close(fd);
    }
    for (; children > 0; children--) {
        check(wait(&status) > 0, "wait");
        failed |= status;
    }
    puts(failed ? "not exact" : "exact");
    return failed != 0;
}

static int watch(int peer)
{
    unsigned char byte;
    int fd = connected(peer, PORT + 1);
    puts("connected");
    fflush(stdout);
    int result = transfer(fd, SCIF_RECV, &byte, 1);
    printf("%s\n", result ? strerrorname_np(errno) : "a byte");
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "mesh") && argc > 3)
        return mesh(atoi(argv[2]), argc - 3, argv + 3);
    if (!strcmp(what, "watch") && argc == 3)
        return watch(atoi(argv[2]));
    if (!strcmp(what, "hold"))
        for (int peer, listener = listening(PORT + 1);;)
            accepted(listener, &peer);
    if (!strcmp(what, "hog")) {
        for (char *memory; (memory = malloc(1 << 20));)
            memset(memory, 1, 1 << 20);
        puts("full");
        fflush(stdout);
        return getchar() == EOF;
    }
    if (!strcmp(what, "write") && argc == 3)
        return close(open(argv[2], O_CREAT | O_EXCL | O_WRONLY, 0600)) != 0;
    if (!strcmp(what, "exists") && argc == 3)
        return access(argv[2], F_OK) != 0;
    return 2;
}
