"""Files with and without names, directories, devices, memory, processes. Says `ready`, waits for `go`, looks whether all
is there."""
import ctypes, fcntl, mmap, os, select, signal, stat, struct, time

libc = ctypes.CDLL(None, use_errno=True)
wrong = []


def check(what, is_so):
    if not is_so:
        wrong.append(what)


def lines(path):
    return dict(line.split(":", 1) for line in open(path).read().splitlines())


# Names: a directory that is half read, O_PATH of all kinds, a file that only its descriptors know.
os.mkdir("many")
for i in range(300):
    open(f"many/{i}", "w").close()
many = os.open("many", os.O_RDONLY | os.O_DIRECTORY)
buffer = ctypes.create_string_buffer(1000)
first = libc.syscall(217, many, buffer, 1000)
half = os.lseek(many, 0, os.SEEK_CUR)


def entries():
    """What is left of the directory."""
    found = []
    while (count := libc.syscall(217, many, buffer, 1000)) > 0:
        at = 0
        while at < count:
            length = struct.unpack_from("H", buffer.raw, at + 16)[0]
            found.append(buffer.raw[at + 19:at + length].split(b"\0")[0])
            at += length
    return found


rest = entries()
os.lseek(many, half, os.SEEK_SET)
os.symlink("many", "link")
named = os.open("many", os.O_PATH)
linked = os.open("link", os.O_PATH | os.O_NOFOLLOW)
temporary = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
os.write(temporary, b"no name yet")
memory = f"/dev/shm/snaprig-{os.getpid()}"
shm = os.open(memory, os.O_RDWR | os.O_CREAT, 0o600)
os.write(shm, b"in shared memory")
twice = os.open(memory, os.O_RDONLY)
os.unlink(memory)
mapped = os.open("mapped", os.O_RDWR | os.O_CREAT, 0o600)
os.write(mapped, b"mapped by all".ljust(4096, b"."))
os.unlink("mapped")
view = mmap.mmap(mapped, 4096)
written = os.open("written", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
os.write(written, b"first line\n")
cut = os.open("written", os.O_RDONLY)
os.read(cut, 6)
# Memory with seals.
sealed = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
os.write(sealed, b"for ever".ljust(4096, b"!"))
fcntl.fcntl(sealed, 1033, 0xF)
seen = mmap.mmap(sealed, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
growing = os.memfd_create("growing", os.MFD_ALLOW_SEALING)
fcntl.fcntl(growing, 1033, 2)
plain = os.memfd_create("plain", 0)
# Devices.
devices = [os.open(f"/dev/{name}", os.O_RDWR) for name in ["null", "zero", "full", "random", "urandom"]]
# Processes: one that lives, one that has ended, one that is gone.
r, w = os.pipe()
lives = os.fork()
if lives == 0:
    os.close(w)
    os.read(r, 1)
    os._exit(9)
os.close(r)
ended = os.fork()
if ended == 0:
    os._exit(3)
gone = os.fork()
if gone == 0:
    os._exit(0)
pids = [os.pidfd_open(pid) for pid in (lives, ended, gone, os.getpid(), os.getppid())]
copy = os.dup(pids[0])
os.waitpid(gone, 0)
os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
epoll = select.epoll()
epoll.register(pids[0], select.EPOLLIN)
status = os.open(f"/proc/{lives}/status", os.O_RDONLY)
own = os.open("/proc/self/maps", os.O_RDONLY)
os.read(own, 100)
tasks = os.open("/proc/self/task", os.O_RDONLY | os.O_DIRECTORY)
uptime = os.open("/proc/uptime", os.O_RDONLY)
# Timers: one that has gone off and not been read, one for a time of the day.
off = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)
libc.timerfd_settime(off, 0, struct.pack("qqqq", 0, 0, 0, 1), None)
day = libc.timerfd_create(time.CLOCK_REALTIME, 0)
at = int(time.time()) + 1000
libc.timerfd_settime(day, 1, struct.pack("qqqq", 0, 0, at, 0), None)
select.select([off], [], [])
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)

check("directory", first > 0 and entries() == rest)
check("O_PATH", os.path.samestat(os.fstat(named), os.stat("many")) and os.open("7", os.O_RDONLY, dir_fd=named) > 0)
check("link", stat.S_ISLNK(os.fstat(linked).st_mode))
check("temporary", os.pread(temporary, 100, 0) == b"no name yet" and os.lseek(temporary, 0, 1) == 11)
check("temporary mode", os.fstat(temporary).st_mode & 0o777 == 0o640)
os.link(f"/proc/self/fd/{temporary}", "named", src_dir_fd=named, follow_symlinks=True)
check("named", open("named").read() == "no name yet")
os.write(shm, b", twice")
check("shm", os.read(twice, 100) == b"in shared memory, twice" and os.fstat(shm).st_nlink == 0)
os.pwrite(mapped, b"MAPPED", 0)
check("mapped", view[:13] == b"MAPPED by all" and os.lseek(mapped, 0, 1) == 4096)
os.write(written, b"second line\n")
check("appended", os.read(cut, 100) == b"line\nsecond line\n" and open("written").read() == "first line\nsecond line\n")
check("sealed", fcntl.fcntl(sealed, 1034) == 0xF and seen[:8] == b"for ever")
try:
    os.pwrite(sealed, b"x", 0)
    wrong.append("written in spite of seals")
except PermissionError:
    pass
check("seals", [fcntl.fcntl(fd, 1034) for fd in (growing, plain)] == [2, 1])
null, zero, full, random, urandom = devices
check("null", os.write(null, b"x") == 1 and os.read(null, 1) == b"")
check("zero", os.read(zero, 3) == bytes(3))
check("random", len(os.read(random, 8)) == len(os.read(urandom, 8)) == 8)
try:
    os.write(full, b"x")
    wrong.append("full")
except OSError:
    pass


def readable(fd):
    return select.select([fd], [], [], 0)[0] == [fd]


check("pidfds", [readable(fd) for fd in pids] == [False, True, True, False, False])
check("whose", [lines(f"/proc/self/fdinfo/{fd}")["Pid"].strip() for fd in pids]
      == [str(lives), str(ended), "-1", str(os.getpid()), str(os.getppid())])
check("ended", os.waitid(os.P_PIDFD, pids[1], os.WEXITED).si_status == 3)
check("status", f"Pid:\t{lives}\n".encode() in os.read(status, 10000))
signal.pidfd_send_signal(pids[0], 0)
os.write(w, b"x")
check("epoll of a pidfd", epoll.poll(10) == [(pids[0], select.EPOLLIN)] and readable(copy))
os.waitpid(lives, 0)
check("maps", os.lseek(own, 0, 1) == 100 and b"python" in os.read(own, 100000))
check("tasks", os.listdir(tasks) == [str(os.getpid())])
check("uptime", float(os.read(uptime, 100).split()[0]) > 0)
check("ticks", struct.unpack("Q", os.read(off, 8)) == (1,))
setting = ctypes.create_string_buffer(32)
libc.timerfd_gettime(day, setting)
left = struct.unpack("qqqq", setting.raw)[2]
check("day", abs(left - (at - time.time())) < 2)
print("wrong:" if wrong else "all right", *wrong, flush=True)
