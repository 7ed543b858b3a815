"""What is not whole: memory of a few bytes, sealed; a timer that has expired unread; a working directory that has been
removed. Says `ready`, waits for the file `go`, and looks whether all is there."""
import ctypes, fcntl, os, select, struct, time

libc = ctypes.CDLL(None, use_errno=True)
F_ADD_SEALS, SEALS = 1033, 2 | 4 | 8
INTERVAL = 0.02
checks = []


def check(what, is_so):
    if not is_so:
        checks.append(what)


memory = os.memfd_create("few", os.MFD_ALLOW_SEALING)
os.write(memory, b"sealed")
fcntl.fcntl(memory, F_ADD_SEALS, SEALS)
timer = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)
nanos = int(INTERVAL * 1e9)
libc.timerfd_settime(timer, 0, struct.pack("4q", 0, nanos, 0, nanos), None)
begun = time.monotonic()
once = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK)
libc.timerfd_settime(once, 0, struct.pack("4q", 0, 0, 0, nanos), None)
go = os.path.abspath("go")
os.mkdir("removed")
os.chdir("removed")
os.rmdir("../removed")
select.select([timer], [], [])

print("ready", flush=True)
while not os.path.exists(go):
    time.sleep(0.005)

check("memory's size", os.pread(memory, 100, 0) == b"sealed" and os.fstat(memory).st_size == 6)
passed = (time.monotonic() - begun) / INTERVAL
ticks, = struct.unpack("q", os.read(timer, 8))
check(f"{ticks} ticks of {passed}", passed - 2 < ticks < passed + 3)
check("the next tick", select.select([timer], [], [], 10)[0])
check("once", struct.unpack("q", os.read(once, 8)) == (1,) and not select.select([once], [], [], 0)[0])
try:
    check("a directory", os.getcwd() is None)
except FileNotFoundError:
    check("its name", os.readlink("/proc/self/cwd").endswith(" (deleted)"))
print("wrong: " + ", ".join(checks) if checks else "all right", flush=True)
