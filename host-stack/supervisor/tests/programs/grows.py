# Has 64 MiB of random bytes when there is a file `grow`; they are what they were when there is a file `stop`.
import hashlib, os, time

def wait(name):
    while not os.path.exists(name):
        time.sleep(0.001)

def say(text):
    os.write(1, (text + "\n").encode())

say("ready")
wait("grow")
data = os.urandom(64 << 20)
before = hashlib.sha256(data).digest()
say("grown")
wait("stop")
say("right" if hashlib.sha256(data).digest() == before else "wrong")
