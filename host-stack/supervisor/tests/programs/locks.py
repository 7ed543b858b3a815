"""Locks of every kind, leases, signals of open files. Says `ready`, waits for the file `go`, looks whether all is there."""
import fcntl, os, signal, struct, time

F_OFD_GETLK, F_OFD_SETLK, F_SETSIG, F_GETSIG, F_SETOWN_EX, F_GETOWN_EX = 36, 37, 10, 11, 15, 16
wrong = []


def check(what, is_so):
    if not is_so:
        wrong.append(what)


def region(kind, start, length):
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


def found(fd, call, start=0, length=0, kind=fcntl.F_WRLCK):
    """Who holds what of a file: kind, start, length, process."""
    lock = struct.unpack("hhqqi4x", fcntl.fcntl(fd, call, region(kind, start, length)))
    return lock[0], lock[2], lock[3], lock[4]


def opened(name):
    return os.open(name, os.O_RDWR | os.O_CREAT, 0o600)


whole, shared, parts, own, leased = map(opened, ["whole", "shared", "parts", "own", "leased"])
nameless = opened("nameless")
os.unlink("nameless")
fcntl.flock(whole, fcntl.LOCK_EX)
fcntl.flock(shared, fcntl.LOCK_SH)
fcntl.flock(nameless, fcntl.LOCK_EX)
fcntl.lockf(parts, fcntl.LOCK_EX, 10, 5)
fcntl.lockf(parts, fcntl.LOCK_SH, 0, 100)
fcntl.fcntl(own, F_OFD_SETLK, region(fcntl.F_WRLCK, 0, 7))
writer = os.open("leased", os.O_RDWR)
os.close(leased)
leased = writer
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
broken = []
signal.signal(signal.SIGUSR2, lambda *_: broken.append(1))
fcntl.fcntl(leased, F_SETSIG, signal.SIGUSR2)

# A child holds locks of its own, and shares the description of `whole`.
done_r, done_w = os.pipe()
child = os.fork()
if child == 0:
    mine = opened("childs")
    fcntl.lockf(mine, fcntl.LOCK_EX, 3, 1)
    os.write(done_w, b"x")
    while not os.path.exists("go"):
        time.sleep(0.01)
    while not os.path.exists("seen"):
        time.sleep(0.01)
    os._exit(0)
os.read(done_r, 1)

# Signals: of a pipe to this process, and of another to a thread by number.
r, w = os.pipe()
os.set_blocking(r, False)
got = []
signal.signal(signal.SIGRTMIN + 3, lambda *_: got.append("pipe"))
fcntl.fcntl(r, F_SETOWN_EX, struct.pack("ii", 1, os.getpid()))
fcntl.fcntl(r, F_SETSIG, signal.SIGRTMIN + 3)
fcntl.fcntl(r, fcntl.F_SETFL, fcntl.fcntl(r, fcntl.F_GETFL) | os.O_ASYNC)
r2, w2 = os.pipe()
fcntl.fcntl(r2, fcntl.F_SETOWN, os.getpid())
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)


def other(name, test):
    """What another process finds out."""
    pid = os.fork()
    if pid == 0:
        fd = os.open(name, os.O_RDWR)
        try:
            os._exit(0 if test(fd) else 1)
        except BaseException:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


def is_taken(fd, how):
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True


me = os.getpid()
check("flock", other("whole", lambda fd: is_taken(fd, fcntl.LOCK_SH)))
check("shared flock", other("shared", lambda fd: is_taken(fd, fcntl.LOCK_EX) and not is_taken(fd, fcntl.LOCK_SH)))
check("flock without a name", is_taken(os.open(f"/proc/self/fd/{nameless}", os.O_RDWR), fcntl.LOCK_SH))
check("process", other("parts", lambda fd: found(fd, fcntl.F_GETLK) == (fcntl.F_WRLCK, 5, 10, me)))
check("process, to the end", other("parts", lambda fd: found(fd, fcntl.F_GETLK, 200, 1) == (fcntl.F_RDLCK, 100, 0, me)))
check("description", other("own", lambda fd: found(fd, F_OFD_GETLK) == (fcntl.F_WRLCK, 0, 7, -1)))
check("the child's", found(opened("childs"), fcntl.F_GETLK) == (fcntl.F_WRLCK, 1, 3, child))
check("lease", fcntl.fcntl(leased, fcntl.F_GETLEASE) == fcntl.F_WRLCK)
pid = os.fork()
if pid == 0:
    try:
        os.open("leased", os.O_RDONLY | os.O_NONBLOCK)
    except BlockingIOError:
        os._exit(0)
    os._exit(1)
check("lease is kept", os.waitpid(pid, 0)[1] == 0)
check("lease's signal", broken == [1])
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_UNLCK)
check("owner", struct.unpack("ii", fcntl.fcntl(r, F_GETOWN_EX, bytes(8))) == (1, me))
check("signal", fcntl.fcntl(r, F_GETSIG) == signal.SIGRTMIN + 3)
os.write(w, b"now")
check("told", got == ["pipe"])
check("another owner", fcntl.fcntl(r2, fcntl.F_GETOWN) == me and not fcntl.fcntl(r2, fcntl.F_GETFL) & os.O_ASYNC)
open("seen", "w").close()
os.waitpid(child, 0)
print("wrong:" if wrong else "all right", *wrong, flush=True)
