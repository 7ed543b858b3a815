"""Files that others write to as well: one that grows, one that is mapped and not open, one that is read, one that has no name, and
one of another file system, which is named. Says `ready`; when there is a file `go`, whether they are as they were left, by whomever."""
import mmap, os, sys, tempfile, time

log = os.open("log", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
shared = os.open("shared", os.O_RDWR)
mapped = mmap.mmap(shared, 4096)
os.close(shared)
read = open("read", "rb", buffering=0)
head = read.read(4)
nameless = tempfile.TemporaryFile(dir=".", buffering=0)
nameless.write(b"nameless")
nameless.seek(4)
elsewhere = os.open(sys.argv[1], os.O_RDWR)
os.ftruncate(elsewhere, 4096)
there = mmap.mmap(elsewhere, 4096)
there[:5] = b"there"
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.001)
os.write(log, b"done\n")
mapped[4:8] = b"mine"
with open("shared", "rb") as file:
    is_one = file.read(4096) == mapped[:]
is_one = is_one and os.pread(elsewhere, 5, 0) == b"there"
is_right = is_one and head == b"read" and read.read() == b" by all" and nameless.read() == b"less"
print("right" if is_right else "wrong", flush=True)
