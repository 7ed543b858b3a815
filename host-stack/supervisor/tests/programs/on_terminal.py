"""The user at a terminal: launches a program from an interactive shell, works with it, has it checkpointed and killed, and
restarts it on another terminal of another size. Says `all right`, or what is wrong.

    on_terminal.py DRIVER screen|shell
"""
import fcntl, os, pty, select, signal, struct, subprocess, sys, termios, time

DRIVER, WHAT = sys.argv[1:]
PROGRAMS = os.path.dirname(os.path.abspath(__file__))
shells = []


class Terminal:
    """A terminal with a shell of its user on it."""

    def __init__(self, rows, columns):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(PS1="user> ", TERM="vt100", HISTFILE="/dev/null")
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        shells.append(self.pid)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.shown = b""
        self.until(b"user> ")

    def until(self, text, seconds=60):
        """Waits until something is shown; what has been until then."""
        end = time.monotonic() + seconds
        while text not in self.shown:
            if time.monotonic() > end:
                sys.exit(f"waited for {text} in vain; shown: {self.shown}")
            if select.select([self.fd], [], [], 0.1)[0]:
                self.shown += os.read(self.fd, 4096)
        before, self.shown = self.shown.split(text, 1)
        return before

    def type(self, text):
        os.write(self.fd, text)

    def group(self):
        return struct.unpack("i", fcntl.ioctl(self.fd, termios.TIOCGPGRP, bytes(4)))[0]

    def until_not(self, group):
        """Waits until another process group is in the foreground: a shell says what it starts before that has it."""
        end = time.monotonic() + 60
        while self.group() == group:
            assert time.monotonic() < end, "the shell keeps the terminal"
            time.sleep(0.01)

    def until_it_waits(self, program):
        """Waits until a program of this directory waits for what is typed. Curses looks whether the size has changed, and
        then reads: what changes between the two it does not notice before the next key."""
        end = time.monotonic() + 60
        while not is_waiting(program):
            assert time.monotonic() < end, f"{program} does not wait"
            time.sleep(0.01)

    def lflag(self):
        return termios.tcgetattr(self.fd)[3]


def is_waiting(program):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as words, open(f"/proc/{pid}/stat") as stat:
                interpreter, *rest = words.read().split("\0")
                state = stat.read().rsplit(") ", 1)[1][0]
            is_it = interpreter.endswith("python3") and rest[:1] == [f"{PROGRAMS}/{program}"]
            if is_it and state == "S" and os.readlink(f"/proc/{pid}/cwd") == os.getcwd():
                return True
        except OSError:
            pass
    return False


def dump(*more):
    done = subprocess.run([DRIVER, "dump", "job", *more], stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(done.stdout.decode())


def screen(first, second):
    """A program that draws."""
    first.type(f"{DRIVER} launch job /usr/bin/python3 {PROGRAMS}/screen.py\n".encode())
    first.until(b"24 x 80")
    first.type(b"abc")
    first.until(b"c")
    first.until_it_waits("screen.py")
    dump()
    first.type(b"d")
    first.until(b"d")
    first.until_it_waits("screen.py")
    dump("kill")
    first.type(b"\nstty sane\n")
    first.until(b"user> ")
    second.type(f"{DRIVER} restart job\n".encode())
    second.until(b"40 x 100")
    assert not second.lflag() & termios.ECHO and not second.lflag() & termios.ICANON
    second.type(b"e")
    second.until(b"abcde")
    second.type(b"q")
    second.until(b"right: abcde")
    second.until(b"user> ")


def shell(first, second):
    """A shell with job control, on the terminal of its user, with a pipe that its user has given it."""
    first.type(f"PS1='inner> ' TERM=dumb {DRIVER} launch job bash --norc --noprofile -i 7> >(cat >> told)\n".encode())
    first.until(b"told)\r\n")
    first.until(b"inner> ")
    inner = first.group()
    first.type(b"echo first >&7; x=5; sleep 1000\n")
    first.until(b"sleep 1000\r\n")
    first.until_not(inner)
    dump()
    first.type(b"\x1a")
    first.until(b"Stopped")
    first.until(b"inner> ")
    dump("kill")
    first.until(b"user> ")
    second.type(f"{DRIVER} restart job 7> >(cat >> told)\n".encode())
    second.until(b"told)\r\n")
    second.type(b"echo second >&7; echo x is $x; jobs; stty size\n")
    second.until(b"x is 5")
    second.until(b"Stopped")
    second.until(b"40 100")
    second.until(b"inner> ")
    inner = second.group()
    second.type(b"fg\n")
    second.until(b"sleep 1000\r\n")
    second.until_not(inner)
    second.type(b"\x03")
    second.until(b"inner> ")
    second.type(b"exit 7\n")
    second.until(b"user> ")
    second.type(b"echo status $?\n")
    second.until(b"status 7")
    # Those who read end when nobody has the pipes any more.
    end = time.monotonic() + 60
    while not os.path.exists("told") or open("told").read() != "first\nsecond\n":
        assert time.monotonic() < end, open("told").read()
        time.sleep(0.01)


try:
    {"screen": screen, "shell": shell}[WHAT](Terminal(24, 80), Terminal(40, 100))
    print("all right", flush=True)
finally:
    for pid in shells:
        os.kill(pid, signal.SIGHUP)
        os.kill(pid, signal.SIGKILL)
