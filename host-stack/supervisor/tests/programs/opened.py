"""Files that were opened by names which they have lost, with flags that go with a name alone. Says `ready`, waits for
the file `go`, and looks whether F_GETFL still tells them, and whether all who share a file do."""
import fcntl, mmap, os, tempfile, time

wrong = []


def check(what, is_so):
    if not is_so:
        wrong.append(what)


def flags(fd):
    return fcntl.fcntl(fd, fcntl.F_GETFL)


# Memory, as shm_open(3) has it, twice.
name = f"/dev/shm/snaprig-{os.getpid()}"
shm = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
reads = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
os.ftruncate(shm, 5000)
shared = mmap.mmap(shm, 5000)
shared[:6] = b"shared"
os.lseek(reads, 2, os.SEEK_SET)
os.unlink(name)
# Memory of a file that never had a name.
temporary = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_NOATIME, 0o600)
again = os.open(f"/proc/self/fd/{temporary}", os.O_RDONLY)
os.ftruncate(temporary, 4096)
mapped = mmap.mmap(temporary, 4096)
mapped[:5] = b"never"
# Files that nobody maps: tempfile opens with O_NOFOLLOW.
made, name = tempfile.mkstemp(dir=".")
other = os.open(name, os.O_RDONLY | os.O_NOFOLLOW)
os.write(made, b"made")
os.unlink(name)
with open("named", "w") as file:
    file.write("named")
named = os.open("named", os.O_RDONLY | os.O_NOFOLLOW)
directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
synchronous = os.open("named", os.O_WRONLY | os.O_SYNC | os.O_APPEND)
everything = [shm, reads, temporary, again, made, other, named, directory, synchronous]
before = [flags(fd) for fd in everything]
check("flags of names", all(flag & os.O_NOFOLLOW for flag in [before[0], before[1], before[4], before[5]])
      and before[2] & os.O_TMPFILE == os.O_TMPFILE)
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.005)

for fd, then, now in zip(everything, before, (flags(fd) for fd in everything)):
    check(f"flags of {fd}: {then:#o}, now {now:#o}", then == now)
check("shared", shared[:6] == b"shared" and os.fstat(shm).st_size == 5000 and os.fstat(shm).st_nlink == 0)
os.pwrite(shm, b"SH", 0)
check("one memory", shared[:6] == b"SHared" and os.read(reads, 4) == b"ared")
shared[4990:] = b"to the end"
check("its end", os.pread(reads, 100, 4990) == b"to the end")
os.pwrite(temporary, b"N", 0)
check("never named", mapped[:5] == b"Never" and os.pread(again, 5, 0) == b"Never")
os.write(made, b", and more")
check("made", os.read(other, 100) == b"made, and more")
check("litter", not [name for name in os.listdir(".") if name.startswith((".snaprig-", "tmp"))])
print("wrong:" if wrong else "all right", *wrong, flush=True)
