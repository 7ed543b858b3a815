"""Sockets of all kinds with something in them. Says `ready`, waits for the file `go`, and looks whether all is there."""
import array, os, socket, sys, time

os.chdir(sys.argv[1] if len(sys.argv) > 1 else ".")
checks = []


def check(what, is_so):
    if not is_so:
        checks.append(what)


def drain(s):
    s.settimeout(10)
    parts = []
    while part := s.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


# Unix: a pair, with a descriptor on its way; half closed.
a, b = socket.socketpair()
r, w = os.pipe()
a.send(b"one")
socket.send_fds(a, [b"two"], [w])
os.close(w)
a.send(b"three")
a.shutdown(socket.SHUT_WR)
# Packets and datagrams.
c, d = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
for packet in [b"first", b"x" * 5000, b"last"]:
    c.send(packet)
e, f = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
e.send(b"datagram")
e.send(b"another")
named = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
named.bind("named")
stranger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
stranger.sendto(b"for named", "named")
# One whose other end is gone.
gone, end = socket.socketpair()
end.send(b"last words")
end.close()
# Listeners, an accepted connection and one that waits.
listener = socket.socket(socket.AF_UNIX)
listener.bind("listener")
listener.listen(5)
client = socket.socket(socket.AF_UNIX)
client.connect("listener")
served, _ = listener.accept()
client.send(b"request")
waits = socket.socket(socket.AF_UNIX)
waits.connect("listener")
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\0snaprig-%d" % os.getpid())
abstract.listen(5)
through = socket.socket(socket.AF_UNIX)
through.connect(abstract.getsockname())
throughs, _ = abstract.accept()
throughs.send(b"abstract")

# TCP: in both families, with and without a listener that stays.
pairs = []
for family, host in [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]:
    for stays in [True, False]:
        l = socket.socket(family)
        l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        l.bind((host, 0))
        l.listen(8)
        x = socket.socket(family)
        x.connect(l.getsockname())
        y, _ = l.accept()
        x.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        x.send(b"hello " + host.encode())
        pairs.append((l if stays else l.close(), x, y, x.getsockname(), y.getsockname()))
# More than fits.
l = socket.create_server(("127.0.0.1", 0))
full = socket.create_connection(l.getsockname())
reader, _ = l.accept()
full.setblocking(False)
stream = bytes(i * 7 % 251 for i in range(1 << 16)) * 256
sent = 0
last = time.monotonic()
while time.monotonic() - last < 0.3:
    try:
        sent += full.send(stream[sent:sent + 100000])
        last = time.monotonic()
    except BlockingIOError:
        pass
# Half closed, closed by the other end, closed by both, reset, waiting.
half = socket.create_connection(l.getsockname())
halfs, _ = l.accept()
half.send(b"all of it")
half.shutdown(socket.SHUT_WR)
left = socket.create_connection(l.getsockname())
lefts, _ = l.accept()
left.send(b"bye")
left.close()
both = socket.create_connection(l.getsockname())
boths, _ = l.accept()
both.send(b"over")
both.shutdown(socket.SHUT_WR)
boths.shutdown(socket.SHUT_WR)
pending = socket.create_connection(l.getsockname())
fresh = socket.socket()
u, v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(("127.0.0.1", 0))
v.bind(("127.0.0.1", 0))
v.connect(u.getsockname())
v.send(b"udp one")
v.send(b"udp two")
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
netlink.bind((0, 0))

print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)

message, fds, _, _ = socket.recv_fds(b, 100, 4)
check("passed", message == b"onetwo" and len(fds) == 1)
os.write(fds[0], b"through the passed one")
check("passed pipe", os.read(r, 100) == b"through the passed one")
check("rest", drain(b) == b"three")
b.send(b"back")
check("other way", a.recv(100) == b"back")
check("packets", [d.recv(10000) for _ in range(3)] == [b"first", b"x" * 5000, b"last"])
check("datagrams", [f.recv(100), f.recv(100)] == [b"datagram", b"another"])
f.send(b"answer")
check("datagram back", e.recv(100) == b"answer")
check("named", named.recv(100) == b"for named")
check("gone", drain(gone) == b"last words")
check("request", served.recv(100) == b"request")
check("names", served.getsockname() == "listener" and client.getpeername() == "listener")
late, _ = listener.accept()
waits.send(b"at last")
check("waits", late.recv(100) == b"at last")
check("abstract", through.recv(100) == b"abstract")
new = socket.socket(socket.AF_UNIX)
new.connect("listener")
listener.accept()
for l4, x, y, xs, ys in pairs:
    check(f"tcp {xs}", y.recv(100) == b"hello " + xs[0].encode())
    check(f"names {xs}", (x.getsockname(), x.getpeername()) == (xs, ys) and y.getpeername() == xs)
    check("nodelay", x.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1)
    y.send(b"back")
    check(f"back {xs}", x.recv(100) == b"back")
    if l4:
        socket.create_connection(l4.getsockname()[:2])
        l4.accept()
full.shutdown(socket.SHUT_WR)
got = drain(reader)
check(f"full: {len(got)} of {sent}", got == stream[:sent])
check("half", drain(halfs) == b"all of it")
halfs.send(b"answer")
check("half back", half.recv(100) == b"answer")
check("left", drain(lefts) == b"bye")
check("both", drain(boths) == b"over" and both.recv(1) == b"")
late, _ = l.accept()
pending.send(b"tcp at last")
check("pending", late.recv(100) == b"tcp at last")
fresh.connect(l.getsockname())
check("udp", [u.recvfrom(100), u.recvfrom(100)] == [(b"udp one", v.getsockname()), (b"udp two", v.getsockname())])
print("wrong:" if checks else "all right", *checks, flush=True)
