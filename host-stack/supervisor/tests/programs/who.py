# Says who it is, over and over: a parent that stays, a child that becomes somebody else, both nicer than before.
# `traceable`: others may still trace the child then, which a change of user ends (prctl(2), PR_SET_DUMPABLE).
import ctypes, os, resource, sys, threading

def who():
    status = open("/proc/thread-self/status").read()
    caps = [l for l in status.splitlines() if l.startswith(("Cap", "NoNew", "Uid", "Gid", "Groups"))]
    return (os.getresuid(), os.getresgid(), sorted(os.getgroups()), os.getpriority(os.PRIO_PROCESS, 0),
            os.sched_getscheduler(0), os.getppid(), resource.getrlimit(resource.RLIMIT_CORE), caps)

os.nice(3)
child = os.fork()
if child == 0:
    if os.getuid() == 0:
        os.setgroups([7, 1234])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        if "traceable" in sys.argv:
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    resource.setrlimit(resource.RLIMIT_CORE, (5, 7))
before = who()
os.write(1, b"ready\n")
while not os.path.exists("go"):
    threading.Event().wait(0.001)
if who() != before:
    print("wrong", before, who(), flush=True)
if child != 0:
    _, status = os.waitpid(child, 0)
    print("right", status, flush=True)
