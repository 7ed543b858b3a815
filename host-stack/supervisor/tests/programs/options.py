"""Sockets that are set to something: groups, netlink, multipath TCP. Says `ready`, waits for the file `go`, and looks
whether all is there."""
import errno, os, socket, struct, time

SOL_NETLINK, ADD_MEMBERSHIP, LIST_MEMBERSHIPS, EXT_ACK = 270, 1, 9, 11
MPTCP, SO_ZEROCOPY, UDP_GRO, IP_MULTICAST_ALL = 262, 60, 104, 49
checks = []


def check(what, is_so):
    if not is_so:
        checks.append(what)


def links(s):
    """How many messages an RTM_GETLINK dump has."""
    s.send(struct.pack("=IHHII", 17, 18, 0x301, 7, 0) + b"\0")
    count = 0
    while True:
        data, at = s.recv(1 << 16), 0
        while at < len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind in (2, 3):
                return count if kind == 3 else -1
            count += 1
            at += length + 3 & ~3


# Members of groups, on lo: of IPv4, of one source alone, and of IPv6.
lo = socket.if_nametoindex("lo")
member = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
member.bind(("", 0))
join = struct.pack("=4s4sI", socket.inet_aton("239.1.2.3"), b"\0" * 4, lo)
member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, join)
of_source = socket.inet_aton("232.1.2.3") + socket.inet_aton("127.0.0.1") + socket.inet_aton("127.0.0.9")
member.setsockopt(socket.IPPROTO_IP, 39, of_source)
member.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
member.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
sender.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
try:
    member6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    member6.bind(("::", 0))
    join = socket.inet_pton(socket.AF_INET6, "ff01::1234") + struct.pack("=I", lo)
    member6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, join)
    sender6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sender6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, lo)
except OSError:
    member6 = None
# Netlink: not bound, bound, and of a group that is not in its name.
idle = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
bound = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
bound.bind((0, 1))
bound.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, 34)
bound.setsockopt(SOL_NETLINK, EXT_ACK, 1)
port = bound.getsockname()
count = links(idle)
# A listener of multipath TCP, as Go's are, with a client that knows nothing of it; one that waits to be accepted.
try:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(5)
    client = socket.create_connection(listener.getsockname())
    served, _ = listener.accept()
    served.send(b"served")
    waits = socket.create_connection(listener.getsockname())
except OSError:
    listener = None

print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.005)

to = member.getsockname()[1]
member.settimeout(10)
sender.sendto(b"all", ("239.1.2.3", to))
check("a group", member.recv(10) == b"all")
# From 127.0.0.1, which is not the source that it hears.
sender.sendto(b"no", ("232.1.2.3", to))
other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
other.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
other.bind(("127.0.0.9", 0))
other.sendto(b"yes", ("232.1.2.3", to))
check("a source", member.recv(10) == b"yes")
check("what it is sent by", sender.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, 4) == b"\x7f\0\0\1")
check("zero copies", sender.getsockopt(socket.SOL_SOCKET, SO_ZEROCOPY) == 1)
check("datagrams at once", member.getsockopt(socket.IPPROTO_UDP, UDP_GRO) == 1)
check("all groups", member.getsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL) == 0)
if member6:
    # Nobody can be in a group twice; multicasts of IPv6 have no way on lo.
    try:
        member6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, join)
        check("a group of IPv6", False)
    except OSError as error:
        check("a group of IPv6", error.errno == errno.EADDRINUSE)
    check("where IPv6 goes", sender6.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF) == lo)
groups = bound.getsockopt(SOL_NETLINK, LIST_MEMBERSHIPS, 64)
check("netlink groups", groups[0] == 1 and groups[4] == 2)
check("netlink's name", bound.getsockname() == port)
check("netlink's option", bound.getsockopt(SOL_NETLINK, EXT_ACK) == 1)
check("netlink", links(idle) == count and links(bound) == count > 0)
if listener:
    accepted, _ = listener.accept()
    waits.send(b"waits")
    check("what waits", accepted.recv(10) == b"waits")
    check("multipath TCP", listener.getsockopt(socket.SOL_SOCKET, 38) == MPTCP)
    check("what was served", client.recv(10) == b"served")
    more = socket.create_connection(listener.getsockname())
    served, _ = listener.accept()
    more.send(b"more")
    check("one more", served.recv(10) == b"more")
print("wrong: " + ", ".join(checks) if checks else "all right", flush=True)
