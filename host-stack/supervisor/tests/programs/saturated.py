"""A sender that never stops, and a receiver that does not keep up. When there is the file `stop`, the sender ends, and every
byte must have come, once and in order.

both        reads fast, then slowly (when there is the file `slowly`), then not at all (`not`): says `fast`, `slow`, `full`
still       does not read
receiver    the one end alone, which does not read: says where it listens in the file `port`, and `receiver ready`
sender      the other one: says `sender ready`, sends when there is the file `go`, and says `full`
"""
import array, fcntl, os, select, socket, struct, sys, termios, threading, time

PART = 1 << 18
role = sys.argv[1]


def say(text):
    print(text, flush=True)


def wait(name):
    while not os.path.exists(name):
        os.getcwd()  # Fails when the directory is removed: nobody waits for this program any more.
        time.sleep(0.001)


def send(end):
    sent = 0
    while not os.path.exists("stop"):
        end.sendall(array.array("Q", range(sent, sent + PART // 8)).tobytes())
        sent += PART // 8
    end.sendall(struct.pack("Q", 1 << 63 | sent))
    end.shutdown(socket.SHUT_WR)


def is_full(end):
    (unsent,) = struct.unpack("i", fcntl.ioctl(end, termios.TIOCOUTQ, bytes(4)))
    return unsent > 1 << 20 and not select.select([], [end], [], 0.05)[1]


class Receiver:
    def __init__(self, end):
        self.end, self.count, self.rest, self.right = end, 0, b"", True

    def read(self, size):
        """Whether there was something; the last number says how many there are."""
        got = self.end.recv(size)
        rest = self.rest + got
        whole = len(rest) // 8
        numbers = array.array("Q", rest[:whole * 8])
        self.rest = rest[whole * 8:]
        if whole and numbers[-1] >> 63:
            whole -= 1
            self.right &= numbers.pop() == 1 << 63 | self.count + whole
        self.right &= numbers == array.array("Q", range(self.count, self.count + whole))
        self.count += whole
        return bool(got)

    def end_well(self):
        wait("stop")
        while self.read(PART):
            pass
        say("right" if self.right and not self.rest else f"wrong after {self.count}")


def receiver():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with open("port.new", "w") as file:
            file.write(str(listener.getsockname()[1]))
        os.rename("port.new", "port")
        end, _ = listener.accept()
    say("receiver ready")
    Receiver(end).end_well()


def sender():
    wait("port")
    end = socket.create_connection(("127.0.0.1", int(open("port").read())))
    say("sender ready")
    wait("go")
    thread = threading.Thread(target=send, args=[end])
    thread.start()
    while thread.is_alive() and not is_full(end):
        pass
    say("full")
    thread.join()
    end.recv(1)
    say("sent")


def both():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    thread = threading.Thread(target=send, args=[one])
    thread.start()
    receiver = Receiver(other)
    if role == "both":
        while receiver.count < 1 << 20:
            receiver.read(PART)
        say("fast")
        while not os.path.exists("slowly"):
            receiver.read(PART)
        say("slow")
        while not os.path.exists("not"):
            receiver.read(5000)
            time.sleep(0.0005)
    while not is_full(one):
        pass
    say("full")
    receiver.end_well()
    thread.join()


{"receiver": receiver, "sender": sender}.get(role, both)()
