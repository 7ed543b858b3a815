"""Serves near_client.py on Unix sockets: answers on one, has others on which something waits, or that are shut down."""
import array, os, socket

wrong = []


def check(what, is_so):
    if not is_so:
        wrong.append(what)


def exactly(one, count):
    """So many bytes of a stream, and the descriptors that came with them."""
    data, fds = b"", []
    while len(data) < count:
        part, more, _, _ = socket.recv_fds(one, count - len(data), 10)
        if not part:
            break
        data, fds = data + part, fds + list(more)
    return data, fds


listener = socket.socket(socket.AF_UNIX)
listener.bind("near")
listener.listen()
packets = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
packets.bind(b"\0near %d" % os.getpid())
packets.listen()
former = socket.socket(socket.AF_UNIX)
former.bind("former")
former.listen()
with open("near.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("near.new", "near.pid")
talk, idle, half = (listener.accept()[0] for _ in range(3))
packet = packets.accept()[0]
alone = former.accept()[0]
former.close()

with open("note", "w+") as note:
    note.write("a note")
    note.seek(2)
    socket.send_fds(idle, [b"from the server" * 1000], [note.fileno()])
half.sendall(b"last words")
half.shutdown(socket.SHUT_WR)
for word in (b"one", b"two", b"three"):
    packet.send(word)
print("server ready", flush=True)

while word := talk.recv(100):
    talk.sendall(word)

check("names", (talk.getsockname(), talk.getpeername()) == ("near", "near-client"))
check("former", (alone.getsockname(), alone.getpeername()) == ("former", ""))
data, fds = exactly(idle, 12000)
check("idle", data == b"of the client" * 923 + b"!")
check("pipe", len(fds) == 2 and os.read(fds[0], 100) == b"through a pipe")
check("half", half.recv(100) == b"still heard")
try:
    half.send(b"more")
    wrong.append("half is open")
except BrokenPipeError:
    pass
check("packets", [packet.recv(100) for _ in range(2)] == [b"four", b"five"])
alone.sendall(b"to the end")
check("alone", alone.recv(100) == b"yes")
# Others find it where it was.
again = socket.socket(socket.AF_UNIX)
again.connect("near")
listener.accept()[0].sendall(b"welcome")
check("listener", again.recv(100) == b"welcome")
print("server", "wrong:" if wrong else "right", *wrong, flush=True)
