"""Talks to near_server.py on Unix sockets until it is to stop."""
import os, socket, time

wrong = []


def check(what, is_so):
    if not is_so:
        wrong.append(what)


def connect(name, own=None, kind=socket.SOCK_STREAM):
    one = socket.socket(socket.AF_UNIX, kind)
    if own:
        one.bind(own)
    one.connect(name)
    return one


while not os.path.exists("near.pid"):
    time.sleep(0.01)
with open("near.pid") as file:
    server = int(file.read())
talk, idle, half = connect("near", "near-client"), connect("near"), connect("near")
packet = connect(b"\0near %d" % server, kind=socket.SOCK_SEQPACKET)
alone = connect("former")
reader, writer = os.pipe()
os.write(writer, b"through a pipe")
socket.send_fds(idle, [b"of the client" * 923 + b"!"], [reader, writer])
os.close(reader)
os.close(writer)
half.sendall(b"still heard")
packet.send(b"four")
packet.send(b"five")
print("client ready", flush=True)

number = 0
while not os.path.exists("stop"):
    word = b"word %d" % number
    talk.sendall(word)
    check(word, talk.recv(100) == word)
    number += 1
check("names", (talk.getsockname(), talk.getpeername()) == ("near-client", "near"))
check("former", (alone.getsockname(), alone.getpeername()) == ("", "former"))
data, fds = b"", []
while len(data) < 15000:
    part, more, _, _ = socket.recv_fds(idle, 15000, 10)
    data, fds = data + part, fds + list(more)
check("idle", data == b"from the server" * 1000)
check("note", len(fds) == 1 and os.read(fds[0], 100) == b"note")
check("half", half.recv(100) + half.recv(100) == b"last words")
check("packets", [packet.recv(100) for _ in range(3)] == [b"one", b"two", b"three"])
talk.close()
check("alone", alone.recv(100) == b"to the end")
alone.sendall(b"yes")
print("client", "wrong:" if wrong else "right", *wrong, flush=True)
