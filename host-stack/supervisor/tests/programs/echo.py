"""An asyncio server, and clients of other processes that count what comes back, until they are stopped."""
import asyncio, os, sys


async def serve(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def client(port, name):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = 0
    while not os.path.exists("stop"):
        lines = [b"%s %d %s\n" % (name, number + i, b"x" * (i * 97 % 2000)) for i in range(50)]
        writer.write(b"".join(lines))
        for line in lines:
            if await reader.readline() != line:
                print("wrong", name, number, flush=True)
                return 1
        number += 50
    writer.close()
    return 0


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    clients = []
    for name in "abc":
        clients.append(await asyncio.create_subprocess_exec(sys.executable, __file__, name, str(port)))
    print("ready", flush=True)
    ends = [await client.wait() for client in clients]
    print("right" if not any(ends) else "wrong", flush=True)


async def clients(name, port):
    return sum(await asyncio.gather(*[client(port, b"%s%d" % (name, i)) for i in range(4)]))

if len(sys.argv) > 2:
    sys.exit(asyncio.run(clients(sys.argv[1].encode(), int(sys.argv[2]))))
asyncio.run(main())
