"""Has much memory, of which it writes to little, over and over; ends when there is a file `go`."""

import os

memory = bytearray(os.urandom(1 << 20) * 192)
before = hash(bytes(memory[1 << 26 :]))
print("ready", flush=True)
n = 0
while not os.path.exists("go"):
    memory[n * 4096 % (1 << 22)] = n & 255
    n += 1
print("right" if hash(bytes(memory[1 << 26 :])) == before else "wrong")
