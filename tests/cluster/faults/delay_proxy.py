"""A TCP proxy that delays traffic, for kernels without netem.

    python delay_proxy.py PORT DELAY_MS

Accepts connections that iptables has redirected (nat, REDIRECT), connects to their original destination, and forwards
bytes in both directions. SIGUSR1: from now on, delays every byte by DELAY_MS in each direction; SIGUSR2: no delay.
The bytes of a connection keep their order.
"""

import asyncio
import signal
import socket
import struct
import sys

import network

SO_ORIGINAL_DST = 80
CHUNK = 64 << 10
# The length of the queue of one direction. While the queue is full, the proxy does not read, as with a full TCP window.
QUEUED_CHUNKS = 256


class Delay:
    def __init__(self, seconds):
        self.seconds = seconds
        self.on = False

    def delivery_time(self):
        return asyncio.get_running_loop().time() + (self.seconds if self.on else 0.0)


def original_destination(writer):
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


async def forward(reader, writer, delay):
    """Forwards every byte of `reader` to `writer` at its delivery time; b"" in the queue marks the end."""
    queue = asyncio.Queue(QUEUED_CHUNKS)

    async def read():
        while True:
            try:
                chunk = await reader.read(CHUNK)
            except OSError:
                chunk = b""
            await queue.put((delay.delivery_time(), chunk))
            if not chunk:
                return

    reading = asyncio.ensure_future(read())
    try:
        while True:
            delivery_time, chunk = await queue.get()
            wait = delivery_time - asyncio.get_running_loop().time()
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
            far_reader, far_writer = await dial(*original_destination(writer))
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(forward(reader, far_writer, delay), forward(far_reader, writer, delay))
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
