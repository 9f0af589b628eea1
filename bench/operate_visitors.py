"""Clients that come and go, for `./dev bench operate rss`: watchers, readers of the page's streams, followers of logs,
scrapes, wrong requests, and short jobs.

Some close their connection, some disappear (the connection is reset), and some read so slowly that the coordinator has
to wait for them. A client of gRPC can neither reset its connection nor read slowly, so it connects through a relay.
"""

import asyncio
import collections
import contextlib
import json
import pathlib
import random
import shutil
import socket
import struct

import grpc

from operate_role import CALL_LIMIT_S, dial, say

VISIT_S = (0.5, 4)     # the shortest and the longest visit of a stream
SLOW_BYTES = 1024      # what a slow visitor reads at a time
SLOW_PAUSE_S = 0.1
ENDS = ("close", "close", "cut", "slow")  # half of the visits close their connection
REPORT_S = 2
REST_POLL_S = 0.1
JOB_LIMIT_S = 300


async def wait_until_rest_ends(setting):
    """Waits while a measurement needs that no visit and no short job is under way (operate_memory.Load.at_rest)."""
    while pathlib.Path(setting["rest"]).exists():
        await asyncio.sleep(REST_POLL_S)


def cut(writer):
    """Resets the connection: the peer gets an error in place of the end of the stream, and data that it has sent and
    that was not read here is lost."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Relay:
    """Forwards connections to a port of this machine. Used with `async with`; `cut_all` resets all connections."""

    def __init__(self, port, slow):
        self._port, self._slow = port, slow
        self._writers, self._tasks = [], []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *unused):
        self._server.close()
        self.cut_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_all(self):
        for writer in self._writers:
            cut(writer)

    async def _serve(self, reader, writer):
        self._tasks.append(asyncio.current_task())
        self._writers.append(writer)
        with contextlib.suppress(OSError):
            far_reader, far_writer = await connect(self._port, self._slow)
            self._writers.append(far_writer)
            await asyncio.gather(pump(reader, far_writer, False), pump(far_reader, writer, self._slow))


async def connect(port, slow):
    """(reader, writer). A slow visitor has small receive buffers, so that data that it does not read stays at the
    sender."""
    if not slow:
        return await asyncio.open_connection("127.0.0.1", port)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * SLOW_BYTES)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=connection, limit=SLOW_BYTES)


async def pump(reader, writer, slow):
    while data := await reader.read(SLOW_BYTES if slow else 1 << 16):
        writer.write(data)
        await writer.drain()
        if slow:
            await asyncio.sleep(SLOW_PAUSE_S)
    writer.write_eof()


class Visitors:
    """Each `visit_...` is one visit; `counts` has the number of each."""

    def __init__(self, setting, schema):
        self._setting, self._service, self._grpc = setting, schema["service"], schema["service_grpc"]
        self._port = int(setting["address"].rpartition(":")[2])
        self._newest = setting["after_step"]
        self._recent = [setting["job"]]
        self._channel = dial(setting["address"])
        self.counts = collections.Counter()
        self.under_way = 0

    async def come_and_go(self, visit, pause):
        while True:
            await wait_until_rest_ends(self._setting)
            end = random.choice(ENDS)
            self.under_way += 1
            try:
                async with asyncio.timeout(CALL_LIMIT_S):
                    await visit(end)
            except (OSError, grpc.aio.AioRpcError, TimeoutError, asyncio.IncompleteReadError):
                self.counts["failed"] += 1
            self.under_way -= 1
            name = visit.__name__.removeprefix("visit_")
            self.counts[name] += 1
            self.counts[f"{end}_ends"] += 1
            await asyncio.sleep(random.uniform(0, 2 * pause))

    async def _read_stream(self, end, call, each=lambda message: None):
        """Opens a stream of gRPC on a connection of its own, reads for a while, and ends as `end` says."""
        async with Relay(self._port, end == "slow") as relay:
            channel = dial(self._setting["address"] if end == "close" else relay.address)
            stream = call(self._grpc.JobServiceStub(channel))
            try:
                async with asyncio.timeout(random.uniform(*VISIT_S)):
                    async for message in stream:
                        each(message)
            except TimeoutError:
                pass
            if end == "close":
                stream.cancel()
            else:
                relay.cut_all()
            await channel.close()

    async def visit_watch(self, end):
        """Watches the long job. Slow watchers and one in twenty of the others read the whole history; the rest
        continue after the newest step that an earlier watcher has read."""
        after = 0 if end == "slow" or random.random() < 0.05 else self._newest

        def read(event):
            self._newest = max(self._newest, event.step.step)

        await self._read_stream(end, lambda stub: stub.Watch(
            self._service.WatchRequest(job_id=self._setting["job"], after_step=after)), read)

    async def visit_logs(self, end):
        job = random.choice((self._setting["talker"], random.choice(self._recent)))
        request = self._service.LogsRequest(job_id=job, follow=True, tail_lines=random.choice((1, 200)))
        await self._read_stream(end, lambda stub: stub.Logs(request))

    async def _request(self, port, path, end, method="GET", body=b"", stay_s=None):
        """One HTTP request; `stay_s`: how long a stream is read."""
        reader, writer = await connect(port, end == "slow")
        try:
            head = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Length: {len(body)}",
                    "Content-Type: application/json", "", ""]
            writer.write("\r\n".join(head).encode() + body)
            try:
                async with asyncio.timeout(stay_s or random.uniform(*VISIT_S)):
                    while await reader.read(SLOW_BYTES if end == "slow" else 1 << 16):
                        if end == "slow":
                            await asyncio.sleep(SLOW_PAUSE_S)
            except TimeoutError:
                pass
        finally:
            cut(writer) if end == "cut" else writer.close()

    async def visit_feed(self, end):
        """The streams of the status page, and gRPC's streams in JSON."""
        topic = random.choice(("watch/jobs", "watch/hosts", "watch/events", f"jobs/{self._setting['job']}/watch",
                               f"jobs/{random.choice(self._recent)}/watch", "Watch", "Logs"))
        port = self._setting["http"]
        if topic in ("Watch", "Logs"):
            request = {"Watch": {"job_id": self._setting["job"], "after_step": self._newest},
                       "Logs": {"job_id": self._setting["talker"], "follow": True, "tail_lines": 20}}[topic]
            await self._request(port, f"/api/v1/JobService/{topic}", end, "POST", json.dumps(request).encode())
        else:
            await self._request(port, f"/api/v1/{topic}", end)

    async def visit_scrape(self, end):
        for port in self._setting["metrics"]:
            await self._request(port, "/metrics", end, stay_s=10)

    async def visit_read(self, end):
        """A call with one answer, or a document of the page."""
        service, stub, job = self._service, self._grpc.JobServiceStub(self._channel), random.choice(self._recent)
        choice = random.randrange(8)
        if choice == 0:
            jobs = (await stub.List(service.ListRequest(page_size=50), timeout=CALL_LIMIT_S)).jobs
            self._recent = [found.job_id for found in jobs][:8] or self._recent
        elif choice == 1:
            await stub.Get(service.GetRequest(job_id=self._setting["job"]), timeout=CALL_LIMIT_S)
        elif choice == 2:
            await stub.ListEvents(service.ListEventsRequest(job_id=job), timeout=CALL_LIMIT_S)
        elif choice == 3:
            await stub.ListHosts(service.ListHostsRequest(), timeout=CALL_LIMIT_S)
        else:
            path = ("/", "/page.js", "/api/v1/jobs", f"/api/v1/jobs/{self._setting['job']}/steps",
                    f"/api/v1/jobs/{job}/events", "/api/v1/events", "/api/v1/info")
            await self._request(self._setting["http"], random.choice(path), end, stay_s=10)

    async def visit_refused(self, end):
        """A request that is refused: an unknown job, a wrong job, an unknown path, or bytes without meaning."""
        service, stub = self._service, self._grpc.JobServiceStub(self._channel)
        choice = random.randrange(4)
        try:
            if choice == 0:
                await stub.Get(service.GetRequest(job_id="nosuchjb"), timeout=CALL_LIMIT_S)
            elif choice == 1:
                await stub.Submit(service.SubmitRequest(), timeout=CALL_LIMIT_S)
            elif choice == 2:
                await self._request(self._setting["http"], f"/{random.getrandbits(40):x}", end, stay_s=10)
            else:
                ports = (self._port, self._setting["http"], *self._setting["metrics"])
                _, writer = await connect(random.choice(ports), False)
                writer.write(random.randbytes(300))
                await asyncio.sleep(0.2)
                cut(writer)
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
                raise


async def visit(setting, schema):
    """Runs visitors until the process is ended, and prints the numbers of their visits. `setting["each"]` is the number
    of watchers; there are as many readers of logs and as many readers of feeds, and one visitor of each other kind."""
    visitors = Visitors(setting, schema)
    async with asyncio.TaskGroup() as tasks:
        for kind, pause in ((visitors.visit_watch, 1), (visitors.visit_logs, 1), (visitors.visit_feed, 1)):
            for _ in range(setting["each"]):
                tasks.create_task(visitors.come_and_go(kind, pause))
        for kind in (visitors.visit_scrape, visitors.visit_read, visitors.visit_refused):
            tasks.create_task(visitors.come_and_go(kind, 0.5))
        while True:
            await asyncio.sleep(REPORT_S)
            say(visits_under_way=visitors.under_way, **visitors.counts)


# What short jobs do: a third train a few steps and save, a third are commands, and the others fail or are cancelled.
SHORT_JOBS = ("train", "command", "train", "failing", "command", "cancelled")


class ShortJobs:
    def __init__(self, setting, schema):
        self._setting, self._service = setting, schema["service"]
        self._stub = schema["service_grpc"].JobServiceStub(dial(setting["address"]))
        self.counts = collections.Counter()
        self.under_way = 0

    def _spec(self, kind, folder):
        request = self._service.SubmitRequest.FromString(bytes.fromhex(self._setting["request"]))
        spec = request.spec
        spec.name, spec.checkpoint.dir = f"short-{kind}", str(folder)
        if kind in ("command", "failing"):
            spec.ClearField("train")
            code = 3 if kind == "failing" else 0
            spec.command.argv[:] = ["/bin/sh", "-c", f"for i in 1 2 3 4 5; do echo line $i; done; exit {code}"]
            spec.command.workdir = self._setting["folder"]
        elif kind == "cancelled":
            spec.train.steps = 100_000_000
        return request

    async def run_one(self, kind, folder):
        job = (await self._stub.Submit(self._spec(kind, folder), timeout=CALL_LIMIT_S)).job_id
        stop = asyncio.create_task(self._cancel_later(job)) if kind == "cancelled" else None
        # The events contain the last state. Get might not find the job any more, because few finished jobs are kept.
        state = 0
        async with asyncio.timeout(JOB_LIMIT_S):
            async for event in self._stub.Watch(self._service.WatchRequest(job_id=job)):
                state = event.state.state if event.HasField("state") else state
        if stop is not None:
            await stop
        return self._service.JobState.Name(state).removeprefix("JOB_STATE_")

    async def _cancel_later(self, job):
        await asyncio.sleep(3)
        await self._stub.Cancel(self._service.CancelRequest(job_id=job), timeout=CALL_LIMIT_S)

    async def come_and_go(self, number):
        kinds = self._setting.get("kinds", SHORT_JOBS)
        expected = {"train": "SUCCEEDED", "command": "SUCCEEDED", "failing": "FAILED", "cancelled": "CANCELLED"}
        while True:
            await wait_until_rest_ends(self._setting)
            kind = kinds[(self.counts["jobs"] + number) % len(kinds)]
            folder = pathlib.Path(self._setting["folder"]) / f"short-{number}"
            self.under_way += 1
            state = await self.run_one(kind, folder)
            self.under_way -= 1
            self.counts["jobs"] += 1
            self.counts["other_ends"] += state != expected[kind]
            shutil.rmtree(folder, ignore_errors=True)
            await asyncio.sleep(random.uniform(0, 2 * self._setting["pause"]))


async def run_short_jobs(setting, schema):
    """`at_a_time` short jobs, each replaced by another one when it has ended; prints their number."""
    jobs = ShortJobs(setting, schema)
    async with asyncio.TaskGroup() as tasks:
        for number in range(setting["at_a_time"]):
            tasks.create_task(jobs.come_and_go(number))
        while True:
            await asyncio.sleep(REPORT_S)
            say(jobs=jobs.counts["jobs"], other_ends=jobs.counts["other_ends"], jobs_under_way=jobs.under_way)


async def fill_history(setting, schema):
    """Submits and cancels `count` jobs, `in_flight` at a time, and prints how many are done until all are."""
    stub, service, done = schema["service_grpc"].JobServiceStub(dial(setting["address"])), schema["service"], 0

    async def submit_next(numbers):
        nonlocal done
        request = service.SubmitRequest.FromString(bytes.fromhex(setting["request"]))
        for number in numbers:
            request.spec.name, request.spec.checkpoint.dir = f"fill-{number}", f"/bench/fill-{number}"
            job = (await stub.Submit(request, timeout=CALL_LIMIT_S)).job_id
            await stub.Cancel(service.CancelRequest(job_id=job), timeout=CALL_LIMIT_S)
            done += 1

    async def report():
        while done < setting["count"]:
            say(filled=done)
            await asyncio.sleep(REPORT_S)

    numbers = iter(range(setting["count"]))
    await asyncio.gather(report(), *(submit_next(numbers) for _ in range(setting["in_flight"])))
    say(filled=done)


ROLES = {"visitors": visit, "short-jobs": run_short_jobs, "fill": fill_history}
