"""Has what cannot be saved, one after the other: says `has NAME`, or `no NAME` where it is not to be had, and waits for the
file `next-NAME`."""
import ctypes, os, socket, struct, time

libc = ctypes.CDLL(None, use_errno=True)


def call(number, *arguments):
    """A system call that opens something."""
    fd = libc.syscall(number, *arguments)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def device():
    for name in ["kvm", "fuse", "net/tun", "kmsg", "hpet"]:
        try:
            return os.open(f"/dev/{name}", os.O_RDONLY)
        except OSError:
            pass
    raise OSError("no device")


def removed():
    os.mkdir("removed")
    fd = os.open("removed", os.O_RDONLY)
    os.rmdir("removed")
    return fd


def renamed():
    """A file that has another name than it was opened by, and not that one any more."""
    open("one", "w").close()
    os.link("one", "other")
    fd = os.open("one", os.O_RDONLY)
    os.unlink("one")
    return fd


def watched():
    open("gone", "w").close()
    held = os.open("gone", os.O_RDONLY)
    fd = libc.inotify_init()
    libc.inotify_add_watch(fd, b"gone", 2)
    os.unlink("gone")
    # The watch stays as long as the file is open somewhere.
    globals()["held"] = held
    return fd


def unread():
    fd = libc.inotify_init()
    libc.inotify_add_watch(fd, b".", 0x100)
    open("event", "w").close()
    return fd


def messages():
    """A POSIX message queue, which has no name any more."""
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
    fd = rt.mq_open(b"/snaprig-%d" % os.getpid(), os.O_CREAT | os.O_RDWR, 0o600, None)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "mq_open")
    rt.mq_unlink(b"/snaprig-%d" % os.getpid())
    return fd


def raw():
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW).detach()


def answer():
    """A netlink socket with an answer that nobody reads."""
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    s.send(struct.pack("=IHHII", 17, 18, 0x301, 7, 0) + b"\0")
    return s.detach()


kinds = {
    "device": device,
    "io_uring": lambda: call(425, 1, ctypes.create_string_buffer(120)),
    "userfaultfd": lambda: call(323, 1),
    "fanotify": lambda: call(300, 0x200, 0),
    "secretmem": lambda: call(447, 0),
    "pidfd": lambda: os.pidfd_open(1),
    "process": lambda: os.open("/proc/1/status", os.O_RDONLY),
    "namespace": lambda: os.open("/proc/self/ns/net", os.O_RDONLY),
    "removed": removed,
    "renamed": renamed,
    "fifo": lambda: os.open("fifo", os.O_RDONLY),
    "watched": watched,
    "unread": unread,
    "messages": messages,
    "raw": raw,
    "answer": answer,
}
for name, have in kinds.items():
    try:
        fd = have()
    except OSError as error:
        print(f"no {name} {error}", flush=True)
        continue
    print(f"has {name} as {fd}.", flush=True)
    while not os.path.exists(f"next-{name}"):
        time.sleep(0.005)
    os.close(fd)
    if name == "watched":
        os.close(held)
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.005)
print("all right", flush=True)
