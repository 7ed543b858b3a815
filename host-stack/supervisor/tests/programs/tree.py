# A tree of processes: groups and sessions, with leaders and without, those who have ended, who are stopped, a daemon.
import os, signal, sys, threading

def wait(name):
    while not os.path.exists(name):
        threading.Event().wait(0.001)

def say(text):
    os.write(1, (text + "\n").encode())

def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid

def stay(name):
    before = (os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0))
    say("ready")
    wait("go")
    after = (os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0))
    if before != after:
        say(f"wrong {name} {before} {after}")

def leader():
    os.setpgid(0, 0)
    child(lambda: stay("member"))
    stay("leader")
    os.wait()

def orphaned():
    # Its leader ends, and has been waited for.
    first = child(lambda: (os.setpgid(0, 0), wait("joined")))
    while os.getpgid(first) != first:
        pass
    second = child(lambda: (os.setpgid(0, first), open("joined", "w").close(), stay("of an orphaned group")))
    os.waitpid(first, 0)
    return second

def session():
    os.setsid()
    os.waitpid(orphaned(), 0)

def daemon():
    os.setsid()
    # The leader of its session ends; it is somebody else's child.
    if os.fork() != 0:
        os._exit(0)
    while os.getppid() == os.getsid(0):
        pass
    stay("daemon")

children = [child(leader), child(session)]
os.waitpid(child(daemon), 0)
exited, killed = child(lambda: os._exit(7)), child(lambda: os.kill(os.getpid(), signal.SIGKILL))
stopped = child(lambda: os.kill(os.getpid(), signal.SIGSTOP))
for pid in (exited, killed):
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
os.waitpid(stopped, os.WUNTRACED)
stay("first")
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
assert os.waitpid(exited, 0)[1] == 7 << 8
assert os.waitpid(killed, 0)[1] == signal.SIGKILL
assert open(f"/proc/{stopped}/stat").read().split()[2] == "T"
os.kill(stopped, signal.SIGCONT)
assert os.waitpid(stopped, 0)[1] == 0
say("right")
