"""TCP connections with more on its way than fits, both ways, and one that is half closed: threads go on sending, nobody
reads. Says `ready`; when there is the file `stop`, every byte must come, once and in order."""
import array, fcntl, os, select, socket, struct, termios, threading, time

# Numbers, so that nothing can be lost, doubled or moved unseen.
DATA = array.array("Q", range(3 << 20)).tobytes()
FULL = 1 << 20


def connection(buffer=None):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    one = socket.socket()
    if buffer:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    one.connect(listener.getsockname())
    other, _ = listener.accept()
    return one, other


def send(end):
    end.sendall(DATA)
    end.shutdown(socket.SHUT_WR)


def is_full(end):
    (unsent,) = struct.unpack("i", fcntl.ioctl(end, termios.TIOCOUTQ, bytes(4)))
    return unsent > FULL and not select.select([], [end], [], 0)[1]


def receive(end):
    parts = []
    while part := end.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


pairs = [connection(), connection(30000)]
ends = [end for pair in pairs for end in pair]
threads = [threading.Thread(target=send, args=[end]) for end in ends]
for thread in threads:
    thread.start()
closed, half = connection()
closed.setblocking(False)
sent = 0
while not is_full(closed):
    try:
        sent += closed.send(DATA[sent:sent + (1 << 20)])
    except BlockingIOError:
        time.sleep(0.001)
closed.shutdown(socket.SHUT_WR)
while not all(is_full(end) for end in ends):
    time.sleep(0.001)
print("ready", flush=True)
while not os.path.exists("stop"):
    time.sleep(0.001)
wrong = [f"{number}: {len(got)}" for number, got in enumerate(receive(end) for end in ends) if got != DATA]
if (got := receive(half)) != DATA[:sent]:
    wrong.append(f"half closed: {len(got)} of {sent}")
print("wrong:" if wrong else "right", *wrong, flush=True)
