"""A program with terminals: bash on one, another whose contents wait on both sides, one that was closed. Says `ready`, waits
for `go`, looks whether all is as it was."""
import fcntl, os, pty, select, signal, struct, termios, time

wrong = []


def check(what, is_so):
    if not is_so:
        wrong.append(what)


def read_until(fd, text, seconds=20):
    """What a terminal shows, until it shows a text."""
    shown, end = b"", time.monotonic() + seconds
    while text not in shown and time.monotonic() < end:
        if select.select([fd], [], [], 0.1)[0]:
            shown += os.read(fd, 4096)
    return shown


def size(fd):
    return struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))


def ptsname(fd):
    return "/dev/pts/%d" % struct.unpack("i", fcntl.ioctl(fd, 0x80045430, bytes(4)))


# An interactive shell, with job control: a job in the background, one that is stopped.
shell, master = pty.fork()
if shell == 0:
    os.environ["PS1"] = "prompt> "
    os.environ.update(TERM="dumb", HISTFILE="/dev/null")
    os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
read_until(master, b"prompt> ")
os.write(master, b"sleep 1000 & sleep 2000\n")
read_until(master, b"sleep 2000\r\n")
# It is in the foreground when its group is that of the terminal.
while fcntl.ioctl(master, termios.TIOCGPGRP, bytes(4)) == struct.pack("i", shell):
    time.sleep(0.01)
foreground = struct.unpack("i", fcntl.ioctl(master, termios.TIOCGPGRP, bytes(4)))[0]
name = ptsname(master)

# One with something on both sides: lines, the end of a file, what is being edited, packets.
other, slave = pty.openpty()
attributes = termios.tcgetattr(slave)
attributes[3] &= ~termios.ECHO
attributes[6][termios.VINTR] = b"\x07"
termios.tcsetattr(slave, termios.TCSANOW, attributes)
os.write(other, b"a line\nanother\nthe end\x04edited")
os.write(slave, b"shown\n" * 100)
packets, raw = pty.openpty()
attributes = termios.tcgetattr(raw)
attributes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
termios.tcsetattr(raw, termios.TCSANOW, attributes)
fcntl.ioctl(packets, termios.TIOCPKT, struct.pack("i", 1))
os.write(packets, b"\x03keys\x00\x04")
os.write(raw, b"in a packet")
left, closed = pty.openpty()
os.write(closed, b"last words")
os.close(closed)
fresh = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
names = [os.ttyname(fd) for fd in (slave, raw)]
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)

check("names", [os.ttyname(fd) for fd in (slave, raw)] == names and ptsname(master) == name)
check("foreground", struct.unpack("i", fcntl.ioctl(master, termios.TIOCGPGRP, bytes(4)))[0] == foreground)
check("size", size(master) == (30, 100, 0, 0))
os.write(master, b"\x1a")
check("stopped", b"Stopped" in read_until(master, b"prompt> "))
os.write(master, b"jobs; stty size; tty\n")
shown = read_until(master, name.encode())
check(f"jobs {shown}", b"Running" in shown and b"Stopped" in shown and b"30 100" in shown and name.encode() in shown)
read_until(master, b"prompt> ")
os.write(master, b"fg\n")
read_until(master, b"sleep 2000\r\n")
# It says so before the job has the terminal.
while fcntl.ioctl(master, termios.TIOCGPGRP, bytes(4)) != struct.pack("i", foreground):
    time.sleep(0.01)
os.write(master, b"\x03")
read_until(master, b"prompt> ")
os.write(master, b"kill %1; exit 7\n")
read_until(master, b"exit 7")
try:
    while os.read(master, 1000):
        pass
except OSError:
    pass
check("bash", os.waitpid(shell, 0)[1] == 7 << 8)

check("lines", [os.read(slave, 100) for _ in range(3)] == [b"a line\n", b"another\n", b"the end"])
os.write(other, b"\x7f\x7f!\n")
check("edited", os.read(slave, 100) == b"edit!\n")
shown = b""
while len(shown) < 700:
    shown += os.read(other, 1000)
check("shown", shown == b"shown\r\n" * 100)
attributes = termios.tcgetattr(slave)
check("settings", attributes[6][termios.VINTR] == b"\x07" and not attributes[3] & termios.ECHO)
check("raw", os.read(raw, 100) == b"\x03keys\x00\x04")
check("packet", os.read(packets, 100) == b"\0in a packet")
termios.tcflush(raw, termios.TCIFLUSH)
check("packets", os.read(packets, 100) == bytes([1]))
check("last words", os.read(left, 100) == b"last words")
try:
    os.read(left, 100)
    wrong.append("left")
except OSError:
    pass
check("fresh", select.select([fresh], [], [], 0)[0] == [])
print("wrong:" if wrong else "all right", *wrong, flush=True)
