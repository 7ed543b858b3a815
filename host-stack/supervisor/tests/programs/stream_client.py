"""Sends numbered blocks with checksums over several connections, as much as goes; all must come back, once and in order."""
import hashlib, os, select, socket, sys, time

BLOCK = 5000
# Blocks that may be on their way: more than the server reads at once, and than buffers are at first.
WINDOW = 250
name, connections = sys.argv[1], int(sys.argv[2])
while not os.path.exists("port"):
    time.sleep(0.01)
with open("port") as file:
    port = int(file.read())


def block(connection, number):
    head = b"%s %d %d " % (name.encode(), connection, number)
    body = head + hashlib.sha256(head).digest() * (BLOCK // 32)
    return body[:BLOCK]


class Stream:
    def __init__(self, number):
        self.number, self.sent, self.back, self.out, self.got = number, 0, 0, b"", bytearray()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.names = self.socket.getsockname(), self.socket.getpeername()
        self.socket.setblocking(False)

    def wants(self):
        return self.out or self.sent - self.back < WINDOW

    def send(self):
        while True:
            if not self.out:
                if not self.wants():
                    return
                self.out = block(self.number, self.sent)
                self.sent += 1
            try:
                self.out = self.out[self.socket.send(self.out):]
            except BlockingIOError:
                return

    def receive(self):
        part = self.socket.recv(1 << 20)
        if not part:
            raise SystemExit(f"client {name} wrong: the server has closed {self.number}")
        self.got += part
        while len(self.got) >= BLOCK:
            if self.got[:BLOCK] != block(self.number, self.back):
                raise SystemExit(f"client {name} wrong: block {self.back} of {self.number}: {bytes(self.got[:60])}")
            del self.got[:BLOCK]
            self.back += 1


streams = [Stream(number) for number in range(connections)]
print(f"client {name} ready", flush=True)
ends = False
while not ends or any(stream.back < stream.sent for stream in streams):
    ends = ends or os.path.exists("stop")
    writing = [s.socket for s in streams if (s.out if ends else s.wants())]
    readable, writable, _ = select.select([s.socket for s in streams], writing, [], 1)
    for stream in streams:
        if stream.socket in readable:
            stream.receive()
        if stream.socket in writable:
            if not ends:
                stream.send()
            else:
                stream.out = stream.out[stream.socket.send(stream.out):]
assert all(s.names == (s.socket.getsockname(), s.socket.getpeername()) for s in streams), "other names"
print(f"client {name} right", flush=True)
