"""Answers on connections that come and go; two of them are on their way in messages until both clients have done."""
import os, select, socket

listener = socket.create_server(("127.0.0.1", 0))
with open("port.new", "w") as file:
    file.write(str(listener.getsockname()[1]))
os.rename("port.new", "port")
print("server ready", flush=True)
inbox, outbox = socket.socketpair()
clients, passed = [], 0
while clients or not all(os.path.exists(f"done-{name}") for name in ("one", "two")):
    for one in select.select([listener] + clients, [], [], 0.01)[0]:
        if one is listener:
            clients.append(listener.accept()[0])
            continue
        word = one.recv(100)
        if word and word != b"keep":
            one.sendall(word)
            continue
        if word:
            # Nobody has it then but the message.
            socket.send_fds(outbox, [b"x"], [one.fileno()])
            passed += 1
        clients.remove(one)
        one.close()
assert passed == 2, passed
for _ in range(passed):
    _, fds, _, _ = socket.recv_fds(inbox, 1, 1)
    kept = socket.socket(fileno=fds[0])
    kept.sendall(b"kept")
    assert kept.recv(100) == b"bye"
print("server right", flush=True)
