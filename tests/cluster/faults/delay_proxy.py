"""A TCP proxy that delays: stands in for netem where the kernel has none.

    python delay_proxy.py PORT DELAY_MS

Accepts connections that iptables has redirected (nat, REDIRECT), dials where they were meant to go, and passes bytes on
both ways. SIGUSR1: from now on every byte arrives DELAY_MS later, each way; SIGUSR2: at once again. Order is kept.
"""

import asyncio
import signal
import socket
import struct
import sys

import network

SO_ORIGINAL_DST = 80
CHUNK = 64 << 10
# Bytes on their way in one direction; beyond it the sender is not read, as a real window would have it.
QUEUED_CHUNKS = 256


class Delay:
    def __init__(self, seconds):
        self.seconds = seconds
        self.on = False

    def due(self):
        return asyncio.get_running_loop().time() + (self.seconds if self.on else 0.0)


def meant_for(writer):
    raw = writer.get_extra_info("socket").getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack("!2xH4s8x", raw)
    return socket.inet_ntoa(address), port


async def dial(address, port):
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, network.PROXY_MARK)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await asyncio.get_running_loop().sock_connect(connection, (address, port))
    return await asyncio.open_connection(sock=connection)


async def pass_on(reader, writer, delay):
    """Every byte of `reader` to `writer`, each at its time; b"" in the queue is the end."""
    queue = asyncio.Queue(QUEUED_CHUNKS)

    async def read():
        while True:
            try:
                chunk = await reader.read(CHUNK)
            except OSError:
                chunk = b""
            await queue.put((delay.due(), chunk))
            if not chunk:
                return

    reading = asyncio.ensure_future(read())
    try:
        while True:
            due, chunk = await queue.get()
            wait = due - asyncio.get_running_loop().time()
            if wait > 0:
                await asyncio.sleep(wait)
            if not chunk:
                break
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        pass
    finally:
        reading.cancel()


async def serve(port, delay):
    async def accepted(reader, writer):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            far_reader, far_writer = await dial(*meant_for(writer))
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(pass_on(reader, far_writer, delay), pass_on(far_reader, writer, delay))
        for end in (writer, far_writer):
            end.close()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: setattr(delay, "on", True))
    loop.add_signal_handler(signal.SIGUSR2, lambda: setattr(delay, "on", False))
    server = await asyncio.start_server(accepted, "0.0.0.0", port)
    print("listening", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Delay(float(sys.argv[2]) / 1e3)))
