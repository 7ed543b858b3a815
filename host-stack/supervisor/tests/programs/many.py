"""Thousands of open files of one name, some of them twice, close to half of what one may have. Says `ready`, waits for the
file `go`, and looks whether each is where it was."""
import os, resource, time

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
count = min(9000, (most - 500) // 2)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
with open("data", "w") as data:
    data.write("x" * 10000)
files = [os.open("data", os.O_RDONLY) for _ in range(count)]
for at, fd in enumerate(files):
    os.lseek(fd, at, os.SEEK_SET)
copies = [os.dup(fd) for fd in files[::10]]

print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.005)
right = all(os.lseek(fd, 0, os.SEEK_CUR) == at for at, fd in enumerate(files))
for fd in copies:
    os.lseek(fd, 1, os.SEEK_CUR)
right = right and all(os.lseek(fd, 0, os.SEEK_CUR) == at + (at % 10 == 0) for at, fd in enumerate(files))
print("all right" if right else "wrong", flush=True)
