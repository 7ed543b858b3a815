"""Pipes with packets, of all sizes, opened twice; FIFOs. Says `ready`, waits for `go`, looks whether all is there."""
import errno, fcntl, os, select, time

wrong = []


def check(what, is_so):
    if not is_so:
        wrong.append(what)


def drained(fd, size=1 << 20):
    parts = []
    os.set_blocking(fd, False)
    try:
        while part := os.read(fd, size):
            parts.append(part)
    except BlockingIOError:
        parts.append("open")
    return parts


def events(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLOUT)
    return dict(poll.poll(0)).get(fd, 0)


# Packets, also those whose writer is gone; a stream in parts; a full one.
packets, into = os.pipe2(os.O_DIRECT)
for packet in [b"one", b"x" * 4096, b"3", b"the last"]:
    os.write(into, packet)
left, leaving = os.pipe2(os.O_DIRECT)
os.write(leaving, b"single")
os.close(leaving)
after, mixed = os.pipe2(os.O_DIRECT)
os.write(mixed, b"packet")
fcntl.fcntl(mixed, fcntl.F_SETFL, 0)
os.write(mixed, b"stream")
full, filling = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
count = 0
try:
    while True:
        os.write(filling, b"%d" % count)
        count += 1
except BlockingIOError:
    pass
large, w_large = os.pipe()
fcntl.fcntl(large, 1031, 1 << 20)
os.write(w_large, bytes(range(256)) * 4096)
# Each end opened twice, and both at once: flags of their own, but the same bytes once.
r, w = os.pipe()
os.write(w, b"written once")
again = os.open(f"/proc/self/fd/{r}", os.O_RDONLY | os.O_NONBLOCK)
both = os.open(f"/proc/self/fd/{r}", os.O_RDWR)
closed, gone = os.pipe()
os.write(gone, b"rest")
os.close(gone)
nobody, sink = os.pipe()
os.close(nobody)

# FIFOs: with both ends, with one for both, without a name, with a reader that has not been written to.
os.mkfifo("fifo", 0o640)
reader = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
writer = os.open("fifo", os.O_WRONLY)
os.write(writer, b"through the FIFO")
os.mkfifo("alone")
alone = os.open("alone", os.O_RDWR)
os.write(alone, b"to myself")
os.mkfifo("fleeting")
fleeting = os.open("fleeting", os.O_RDWR)
os.write(fleeting, b"without a name")
os.unlink("fleeting")
os.mkfifo("early")
early = os.open("early", os.O_RDONLY | os.O_NONBLOCK)
os.mkfifo("late")
late = os.open("late", os.O_RDONLY | os.O_NONBLOCK)
last = os.open("late", os.O_WRONLY)
os.write(last, b"before")
os.close(last)
# One waits for the other end to be opened.
os.mkfifo("waited")
child = os.fork()
if child == 0:
    fd = os.open("waited", os.O_WRONLY)
    os.write(fd, b"at last")
    os._exit(0)
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)

check("packets", [os.read(packets, 5000) for _ in range(2)] == [b"one", b"x" * 4096])
check("a packet in part", (os.read(packets, 1), os.read(packets, 3)) == (b"3", b"the"))
os.write(into, b"new")
os.write(into, b"newer")
check("new packets", os.read(packets, 100) == b"new" and os.read(packets, 100) == b"newer")
check("single", os.read(left, 2) == b"si" and os.read(left, 10) == b"")
check("mixed", os.read(after, 100) == b"packet" and os.read(after, 100) == b"stream")
check("full", drained(full) == [b"%d" % i for i in range(count)] + ["open"])
check("large", fcntl.fcntl(large, 1032) == 1 << 20 and os.read(large, 2 << 20) == bytes(range(256)) * 4096)
check("flags", [fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK for fd in (r, again)] == [0, os.O_NONBLOCK])
check("once", os.read(r, 100) == b"written once" and drained(again) == ["open"])
os.write(both, b"from both")
check("both", os.read(again, 100) == b"from both")
check("closed", drained(closed) == [b"rest"])
try:
    os.write(sink, b"x")
    wrong.append("sink")
except BrokenPipeError:
    pass
check("FIFO", os.read(reader, 100) == b"through the FIFO" and os.stat("fifo").st_mode & 0o777 == 0o640)
os.write(os.open("fifo", os.O_WRONLY), b"by its name")
check("by name", os.read(reader, 100) == b"by its name")
check("alone", os.read(alone, 100) == b"to myself")
check("fleeting", os.read(fleeting, 100) == b"without a name" and not os.path.exists("fleeting"))
check("early", events(early) == 0 and os.read(early, 1) == b"")
check("late", os.read(late, 100) == b"before" and events(late) & select.POLLHUP)
check("waited", os.read(os.open("waited", os.O_RDONLY), 100) == b"at last")
os.waitpid(child, 0)
print("wrong:" if wrong else "all right", *wrong, flush=True)
