"""Runs two commands at once and prints their output: python3 asyncio_watch.py  (needs TRAINYARD_COORDINATOR)"""

import asyncio

import trainyard


async def run(client, name):
    job = {"name": name, "command": {"argv": ["echo", f"hello from {name}"]}, "resources": {"ranks": 1}}
    submitted = await client.submit(job)
    async for _ in client.watch(submitted.job_id):
        pass
    async for line in client.logs(submitted.job_id):
        print(line.text.decode())


async def main():
    async with trainyard.AsyncClient() as client:
        await asyncio.gather(run(client, "one"), run(client, "two"))


if __name__ == "__main__":
    asyncio.run(main())
