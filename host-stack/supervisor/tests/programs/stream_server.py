"""A server that echoes what its clients send, slowly enough that much is on its way; says its port in a file."""
import os, selectors, socket, sys

listener = socket.create_server(("127.0.0.1", 0), backlog=64)
listener.setblocking(False)
with open("port.new", "w") as file:
    file.write(str(listener.getsockname()[1]))
os.rename("port.new", "port")
loop = selectors.DefaultSelector()
loop.register(listener, selectors.EVENT_READ, None)
print("server ready", flush=True)
served = 0
while served == 0 or len(loop.get_map()) > 1:
    for key, events in loop.select():
        if key.data is None:
            client, _ = listener.accept()
            client.setblocking(False)
            loop.register(client, selectors.EVENT_READ, bytearray())
            served += 1
            continue
        client, waiting = key.fileobj, key.data
        if events & selectors.EVENT_READ and len(waiting) < 300000:
            try:
                part = client.recv(100000)
            except BlockingIOError:
                part = None
            if part == b"":
                loop.unregister(client)
                client.close()
                continue
            waiting += part or b""
        if waiting:
            try:
                del waiting[:client.send(waiting)]
            except BlockingIOError:
                pass
        wanted = (selectors.EVENT_READ if len(waiting) < 300000 else 0) | (selectors.EVENT_WRITE if waiting else 0)
        loop.modify(client, wanted, waiting)
print("server right", flush=True)
