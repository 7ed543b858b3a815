"""Has no descriptor left, and memory that it writes to; ends when there is a file `go`."""

import os
import resource

memory = bytearray(8 << 20)
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
print("ready", flush=True)
n = 0
while not os.path.exists("go"):
    n += 1
    memory[n * 4097 % len(memory)] = n & 255
expected = bytearray(len(memory))
for i in range(1, n + 1):
    expected[i * 4097 % len(memory)] = i & 255
print("right" if memory == expected else "wrong")
