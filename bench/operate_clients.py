#!/usr/bin/env python3
"""The processes with which `./dev bench operate` loads a coordinator: simulated hosts, watchers, submitters, readers.

Each role is a process of its own, because the lock of a single Python interpreter would limit the load. A role prints
lines of JSON, and ends when its standard input is closed, so that it cannot outlive the bench, even if the bench is
killed.

    operate_clients.py ROLE '{"stubs": FOLDER, "address": "127.0.0.1:PORT", ...}'
"""

import asyncio
import random
import time

import operate_role
import operate_visitors
from operate_role import CALL_LIMIT_S, INPUT, dial, say

PROTOCOL = 3
# The kinds of memory that a trainer on a CPU reports. Each kind is two series of /metrics.
MEMORY_KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "host")
SLICES = 32  # the hosts report spread over their interval, as independent hosts do


class Host:
    """A worker daemon written from the schema alone. Its trainers are ready immediately, and make a step in each
    report once they are permitted to."""

    def __init__(self, schema, name, setting):
        self.schema, self.name, self.setting = schema, name, setting
        self.outgoing = asyncio.Queue()
        self.trainers = {}  # (job, generation, rank) -> steps made; None: not permitted yet
        self.facts = self.revision = 0
        self.attached = False

    def send(self, **kind):
        self.outgoing.put_nowait(self.schema.AgentMessage(**kind))

    async def messages(self):
        while True:
            yield await self.outgoing.get()

    async def serve(self, welcomed):
        schema, setting = self.schema, self.setting
        inventory = schema.Inventory(cores=setting["slots"], memory_bytes=8 << 30, version="bench",
                                     data_address="127.0.0.1")
        self.send(hello=schema.Hello(protocol=PROTOCOL, host=self.name, incarnation=random.getrandbits(60) + 1,
                                     slots=setting["slots"], cluster_id=setting["cluster_id"], inventory=inventory,
                                     time_unix_ms=int(time.time() * 1000)))
        self.channel = dial(setting["address"])  # kept: a garbage-collected channel closes its streams
        async for message in setting["service"](self.channel).Attach(self.messages()):
            if message.HasField("welcome"):
                self.attached = True
                welcomed()
            if message.HasField("desired"):
                self.apply(message.desired)
        raise ConnectionError(f"the coordinator has ended the stream of {self.name}")

    def apply(self, desired):
        """Starts and ends trainers so that they are those of the desired state."""
        schema, wanted = self.schema, {}
        for trainer in desired.trainers:
            key = trainer.key
            wanted[key.job_id, key.generation, key.rank] = trainer
        for name in [name for name in self.trainers if name not in wanted]:
            del self.trainers[name]
            self.report_facts(name, {"exited": schema.TrainerExited(cause=schema.TrainerExited.CAUSE_STOPPED)})
        for name, trainer in wanted.items():
            if name not in self.trainers:
                self.trainers[name] = None
                self.report_facts(name, {"started": schema.TrainerStarted(pid=1000)},
                                  {"registered": schema.TrainerRegistered(spec_digest=trainer.spec_digest)},
                                  {"ready": schema.TrainerReady(first_step=1, parameters=1)})
            if trainer.go and self.trainers[name] is None:
                self.trainers[name] = 0
        self.revision = desired.revision
        self.heartbeat()

    def report_facts(self, name, *facts):
        schema, made = self.schema, []
        for fact in facts:
            self.facts += 1
            made.append(schema.Fact(sequence=self.facts, key=self.key(name), time_unix_ms=int(time.time() * 1000),
                                    **fact))
        self.send(facts=schema.FactBatch(facts=made))

    def key(self, name):
        return self.schema.TrainerKey(job_id=name[0], generation=name[1], rank=name[2])

    def heartbeat(self):
        self.send(heartbeat=self.schema.Heartbeat(applied_revision=self.revision,
                                                  time_unix_ms=int(time.time() * 1000)))

    def report(self):
        """One report of all trainers, or a heartbeat if there is nothing to report."""
        if not self.attached:  # `hello` must be the first message
            return
        reports = []
        for name, step in self.trainers.items():
            if step is None:
                continue
            self.trainers[name] = step = step + 1
            reports.append(self.rank_report(name, step))
        if not reports:
            self.heartbeat()
            return
        self.send(reports=self.schema.RankReports(reports=reports))
        for name, step in self.trainers.items():
            if name[0] == self.setting["traced_job"] and name[2] == 0:
                say(step=step, at=time.time())

    def rank_report(self, name, step):
        schema, job_schema = self.schema, self.setting["job_schema"]
        memory = [job_schema.MemoryUse(kind=kind, bytes=(1 << 20) + step, peak_bytes=2 << 20) for kind in MEMORY_KINDS]
        steps = []
        if name[2] == 0:
            steps = [job_schema.StepReport(step=step, loss=1 + 1 / step, tokens=1024, step_s=self.setting["interval"])]
        return schema.RankReport(key=self.key(name), phase="train", last_step=step, memory=memory, steps=steps,
                                 steps_made=step, compute_total_s=step * self.setting["interval"] / 2)


async def simulate_hosts(setting, schema):
    """Attaches `hosts` hosts, prints their number, and lets them report until the end."""
    attached = 0

    def welcomed():
        nonlocal attached
        attached += 1
        if attached == setting["hosts"]:
            say(attached=attached)

    setting.update(service=schema["agent_grpc"].AgentServiceStub, job_schema=schema["service"])
    hosts = [Host(schema["agent"], f"h{number:04}", setting) for number in range(setting["hosts"])]
    async with asyncio.TaskGroup() as tasks:
        for host in hosts:
            tasks.create_task(host.serve(welcomed))
        size = -(-len(hosts) // SLICES)
        while True:
            began = time.monotonic()
            for index in range(0, len(hosts), size):
                for host in hosts[index:index + size]:
                    host.report()
                due = began + setting["interval"] * min(1, (index + size) / len(hosts))
                await asyncio.sleep(max(0, due - time.monotonic()))


async def watch(setting, schema):
    """`watchers` watchers with a connection each, spread over the jobs; prints how many events they have received."""
    received = [0] * setting["watchers"]
    channels = [dial(setting["address"]) for _ in received]

    async def follow(number):
        stub = schema["service_grpc"].JobServiceStub(channels[number])
        job = setting["jobs"][number % len(setting["jobs"])]
        async for _ in stub.Watch(schema["service"].WatchRequest(job_id=job)):
            received[number] += 1
        raise ConnectionError(f"the coordinator has ended the stream of a watcher of job {job}")

    async def report():
        while True:
            await asyncio.sleep(0.2)
            say(watching=sum(count > 0 for count in received), events=sum(received))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(report())
        for number in range(len(received)):
            tasks.create_task(follow(number))


async def submit(setting, schema):
    """Submits `count` jobs, `in_flight` at a time, and prints when it began and ended, and the seconds of each call."""
    channel = dial(setting["address"])
    stub = schema["service_grpc"].JobServiceStub(channel)
    names = iter(range(setting["count"]))
    seconds = []

    async def submit_next():
        request = schema["service"].SubmitRequest.FromString(bytes.fromhex(setting["request"]))
        for number in names:
            request.spec.name = f"{setting['prefix']}-{number}"
            request.spec.checkpoint.dir = f"/bench/{request.spec.name}"
            began = time.monotonic()
            await stub.Submit(request, timeout=CALL_LIMIT_S)
            seconds.append(time.monotonic() - began)

    await asyncio.wait_for(channel.channel_ready(), CALL_LIMIT_S)
    await operate_role.until_begin()
    began = time.monotonic()
    await asyncio.gather(*(submit_next() for _ in range(setting["in_flight"])))
    say(began=began, ended=time.monotonic(), seconds=seconds)


async def get(setting, schema):
    """Gets jobs, one call after the other, and prints the seconds of each. Begins when the bench has sent a line. Makes
    `count` calls; if `count` is 0, makes calls until the bench sends a second line."""
    stub = schema["service_grpc"].JobServiceStub(dial(setting["address"]))
    requests = [schema["service"].GetRequest(job_id=job) for job in setting["jobs"]]
    await stub.Get(requests[0], timeout=CALL_LIMIT_S)
    await operate_role.until_begin()
    seconds = []
    while len(seconds) < setting["count"] or (not setting["count"] and not INPUT["stop"].is_set()):
        began = time.monotonic()
        await stub.Get(requests[len(seconds) % len(requests)], timeout=CALL_LIMIT_S)
        seconds.append(time.monotonic() - began)
        await asyncio.sleep(setting.get("pause", 0.001))
    say(seconds=seconds)


ROLES = {"hosts": simulate_hosts, "watch": watch, "submit": submit, "get": get, **operate_visitors.ROLES}


if __name__ == "__main__":
    operate_role.main(ROLES)
