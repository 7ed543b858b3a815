"""Children that share their parent's memory until somebody writes to it. Says `ready`, waits for the file `go`, and looks
whether it still is shared, and what it was."""
import hashlib, os, time

MEGABYTES, CHILDREN = 64, 4
memory = bytearray(os.urandom(1 << 20) * MEGABYTES)
digest = hashlib.sha256(memory).digest()


def shared():
    with open("/proc/self/smaps_rollup") as lines:
        kilobytes = [int(line.split()[1]) for line in lines if line.startswith(("Shared_Clean:", "Shared_Dirty:"))]
    return sum(kilobytes) >> 10


def look():
    return shared() >= MEGABYTES, hashlib.sha256(memory).digest() == digest


readers = []
for child in range(CHILDREN):
    reader, writer = os.pipe()
    readers.append(reader)
    if os.fork() == 0:
        memory[child] ^= 1
        memory[child] ^= 1
        while not os.path.exists("go"):
            time.sleep(0.005)
        os.write(writer, bytes(look()))
        os._exit(0)
    os.close(writer)
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.005)
# All share with this process, which has nobody to share with when they have ended.
sharing, right = zip(*[os.read(reader, 2) for reader in readers])
print("right" if all(right) and look()[1] else "wrong", "shared" if all(sharing) else "not shared", flush=True)
