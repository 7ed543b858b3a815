"""Reads a file and writes to others, which somebody changes while it is not there. Says `ready`; when there is a file `go`, what
it finds."""
import fcntl, os, time

source = open("source", "rb", buffering=0)
head = source.read(5)
data = os.open("data", os.O_RDWR)
os.pwrite(data, b"DATA", 0)
log = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
os.write(log, b"begun\n")
if os.path.exists("locked"):
    locked = os.open("locked", os.O_RDWR)
    fcntl.flock(locked, fcntl.LOCK_EX)
    fcntl.lockf(locked, fcntl.LOCK_EX, 10, 20)
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
os.write(log, b"done\n")
print(head + source.read(), os.pread(data, 100, 0), open("log", "rb").read(), oct(os.stat("log").st_mode & 0o777))
