# Threads that hand numbers on through queues, and processes that are started and waited for, until there is a file `stop`.
import os, queue, subprocess, sys, threading

stop = threading.Event()
queues = [queue.Queue(10) for _ in range(4)]
counts = [0] * 5
wrong = []

def produce():
    while not stop.is_set():
        queues[0].put(counts[0])
        counts[0] += 1
    queues[0].put(None)

def hand_on(i):
    while (x := queues[i].get()) is not None:
        if x != counts[i + 1]:
            wrong.append((i, x, counts[i + 1]))
        counts[i + 1] += 1
        if i < 3:
            queues[i + 1].put(x)
    if i < 3:
        queues[i + 1].put(None)

def start():
    n = 0
    while not stop.is_set():
        n += 1
        text = subprocess.run(["/bin/sh", "-c", f"cat; exit {n % 100}"], input=b"x" * n * 10, capture_output=True)
        if text.returncode != n % 100 or text.stdout != b"x" * n * 10:
            wrong.append(("process", n, text.returncode, len(text.stdout), text.stderr))

threads = [threading.Thread(target=t) for t in [produce, start]]
threads += [threading.Thread(target=hand_on, args=(i,)) for i in range(4)]
for t in threads: t.start()
print("begun", flush=True)
while not os.path.exists("stop"):
    threading.Event().wait(0.001)
stop.set()
for t in threads: t.join()
print("right" if not wrong and len(set(counts)) == 1 and counts[0] > 0 else f"wrong {wrong} {counts}", flush=True)
