"""inotify. Says `ready`, waits for `go`, looks whether what is watched still is, under the same numbers."""
import ctypes, os, select, struct, time

libc = ctypes.CDLL(None, use_errno=True)
CREATE, MODIFY, DELETE, ONESHOT, IGNORED = 0x100, 2, 0x200, 0x80000000, 0x8000
wrong = []


def check(what, is_so):
    if not is_so:
        wrong.append(what)


def add(fd, path, mask):
    wd = libc.inotify_add_watch(fd, path.encode(), ctypes.c_uint(mask))
    assert wd > 0, path
    return wd


def read(fd):
    """Events that are there: (wd, mask, name)."""
    found = []
    while select.select([fd], [], [], 0)[0]:
        data = os.read(fd, 1 << 16)
        while data:
            wd, mask, _, length = struct.unpack("iIII", data[:16])
            found.append((wd, mask, data[16:16 + length].rstrip(b"\0").decode()))
            data = data[16 + length:]
    return found


os.makedirs("watched/below/deep")
open("watched/file", "w").close()
os.symlink("file", "watched/link")
fd = libc.inotify_init1(os.O_NONBLOCK)
for _ in range(20):
    libc.inotify_rm_watch(fd, add(fd, ".", CREATE))
directory = add(fd, "watched", CREATE | DELETE)
libc.inotify_rm_watch(fd, add(fd, ".", CREATE))
deep = add(fd, "watched/below/deep", CREATE)
file = add(fd, "watched/file", MODIFY)
once = add(fd, "watched/below", CREATE | ONESHOT)
read(fd)
os.rename("watched/below/deep", "watched/below/renamed")
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
check("quiet", read(fd) == [])
open("watched/new", "w").close()
os.unlink("watched/new")
open("watched/below/renamed/new", "w").close()
with open("watched/file", "w") as out:
    out.write("x")
open("watched/below/one", "w").close()
open("watched/below/two", "w").close()
check("events", read(fd) == [
    (directory, CREATE, "new"), (directory, DELETE, "new"), (deep, CREATE, "new"), (file, MODIFY, ""),
    (once, CREATE, "one"), (once, IGNORED, "")] or read(fd))
check("flags", not os.get_blocking(fd))
print("wrong:" if wrong else "all right", *wrong, flush=True)
