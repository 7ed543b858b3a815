"""Connects, has its word answered, and parts, over and over; one connection it keeps, on which nothing comes for long."""
import os, socket, sys, time

name = sys.argv[1]
while not os.path.exists("port"):
    time.sleep(0.01)
with open("port") as file:
    address = "127.0.0.1", int(file.read())
kept = socket.create_connection(address)
kept.sendall(b"keep")
print(f"client {name} ready", flush=True)
number = 0
while not os.path.exists("stop"):
    with socket.create_connection(address) as one:
        word = b"word %d" % number
        one.sendall(word)
        assert one.recv(100) == word, f"client {name} wrong"
    number += 1
    time.sleep(0.03)
open(f"done-{name}", "w").close()
assert kept.recv(100) == b"kept"
kept.sendall(b"bye")
print(f"client {name} right", flush=True)
