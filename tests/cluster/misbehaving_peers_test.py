"""Daemons that send false facts and watchers that never read: they must not affect the jobs of others."""

import os
import queue
import random
import signal
import threading
import time

import grpc
import pytest

import harness
import processes
import tokens

PROTOCOL = 2  # the oldest that coordinators accept


class StubDaemon:
    """One AgentService stream, written from the schema alone. `answers` are the messages of the coordinator."""

    def __init__(self, cluster, host, slots=1, trainers=(), incarnation=None):
        self._agent = cluster.stubs.agent
        self._channel = tokens.dial(cluster.coordinator.address)
        self._outgoing = queue.Queue()
        self.answers = []
        self.error = None
        info = cluster.server_info()
        hello = self._agent.Hello(protocol=PROTOCOL, host=host, slots=slots, cluster_id=info.cluster_id,
                                  incarnation=incarnation or random.getrandbits(60) + 1, trainers=trainers)
        self.send(hello=hello)
        import trainyard.v1.agent_pb2_grpc as service
        self._call = service.AgentServiceStub(self._channel).Attach(iter(self._outgoing.get, None))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for answer in self._call:
                self.answers.append(answer)
        except grpc.RpcError as error:
            self.error = error

    def send(self, **kind):
        self._outgoing.put(self._agent.AgentMessage(**kind))

    def report(self, sequence, key, **fact):
        self.send(facts=self._agent.FactBatch(facts=[self._agent.Fact(sequence=sequence, key=key, **fact)]))

    def wait_for_welcome(self):
        harness.wait_until(lambda: any(answer.HasField("welcome") for answer in self.answers), "the stub is welcomed")

    def wait_for_ack(self, sequence):
        def acknowledged():
            return any(answer.HasField("ack") and answer.ack.sequence >= sequence for answer in self.answers)

        harness.wait_until(acknowledged, f"fact {sequence} is acknowledged")

    def refusal(self):
        return harness.wait_until(lambda: self.error, "the coordinator refuses the stub")

    def close(self):
        self._outgoing.put(None)
        self._call.cancel()
        self._channel.close()


@pytest.fixture
def stub_daemon(one_host):
    daemons = []

    def make(*arguments, **options):
        daemons.append(StubDaemon(one_host, *arguments, **options))
        return daemons[-1]

    yield make
    for daemon in daemons:
        daemon.close()


def test_a_daemon_with_the_name_of_another_is_refused_and_the_job_continues(one_host, stub_daemon):
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 3)

    refusal = stub_daemon("h1", slots=2).refusal()

    assert refusal.code() == grpc.StatusCode.ALREADY_EXISTS
    assert "h1" in refusal.details() and "--name" in refusal.details(), refusal.details()
    at_refusal = one_host.get(job).job.last_step
    view = one_host.wait_for_step(job, at_refusal + 20)
    assert (view.state_name, view.job.generation) == ("RUNNING", 1)


def test_facts_of_an_old_generation_or_another_hosts_rank_change_nothing(one_host, stub_daemon):
    agent = one_host.stubs.agent
    job = one_host.submit(train__steps=1_000_000)
    view = one_host.wait_for_step(job, 3)
    os.kill(view.pid_of(1), signal.SIGKILL)
    harness.wait_until(lambda: (now := one_host.get(job)).state_name == "RUNNING" and now.job.generation == 2,
                       "generation 2 runs")
    stub = stub_daemon("h2")
    stub.wait_for_welcome()

    sequence = 0
    for generation in (1, 2, 3):
        for rank in (0, 1, 7):
            key = agent.TrainerKey(job_id=job, generation=generation, rank=rank)
            false_facts = [{"saved": agent.CheckpointSaved(step=999_999, path="/nowhere", manifest_hash="0" * 32)},
                    {"finished": agent.TrainerFinished(step=999_999)},
                    {"broken": agent.CollectiveBroken(step=5, message="not true")},
                    {"exited": agent.TrainerExited(cause=agent.TrainerExited.CAUSE_SIGNAL, signal=9)}]
            for fact in false_facts:
                sequence += 1
                stub.report(sequence, key, **fact)
    stub.report(sequence + 1, agent.TrainerKey(job_id="nosuchjob", generation=1, rank=0),
              exited=agent.TrainerExited(cause=agent.TrainerExited.CAUSE_EXIT))
    stub.wait_for_ack(sequence + 1)

    at_facts = one_host.get(job).job.last_step
    view = one_host.wait_for_step(job, at_facts + 20)
    assert (view.state_name, view.job.generation, view.job.restarts) == ("RUNNING", 2, 1)
    assert not [checkpoint for checkpoint in view.job.checkpoints if checkpoint.path == "/nowhere"]
    assert view.job.last_step < 999_999


@pytest.mark.parametrize("slots", [0, 100_000])
def test_a_daemon_with_an_absurd_number_of_slots_is_refused_with_the_range(one_host, stub_daemon, slots):
    refusal = stub_daemon("h2", slots=slots).refusal()

    assert refusal.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert str(slots) in refusal.details() and "1024" in refusal.details().replace(",", ""), refusal.details()


def test_a_daemon_that_claims_the_trainers_of_another_gets_none_and_the_job_continues(one_host, stub_daemon):
    agent = one_host.stubs.agent
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 3)

    claimed = [agent.RunningTrainer(key=agent.TrainerKey(job_id=job, generation=1, rank=rank), pid=1, ready=True)
               for rank in (0, 1)]
    stub = stub_daemon("h2", slots=2, trainers=claimed)
    stub.wait_for_welcome()
    desired = harness.wait_until(lambda: [answer.desired for answer in stub.answers if answer.HasField("desired")],
                                 "the stub receives what it should run")

    assert not desired[-1].trainers
    at_claim = one_host.get(job).job.last_step
    view = one_host.wait_for_step(job, at_claim + 20)
    assert (view.state_name, view.job.generation) == ("RUNNING", 1)
    assert {rank.host for rank in view.job.ranks} == {"h1"}


def test_watchers_that_never_read_use_little_memory_and_delay_nobody(one_host):
    service = one_host.stubs.service
    job = one_host.submit(train__steps=3000)
    one_host.wait_for_step(job, 1)
    before = processes.resident_bytes(one_host.coordinator.pid)
    channels = [tokens.dial(one_host.coordinator.address, [("grpc.use_local_subchannel_pool", 1)])
                for _ in range(30)]
    idle = [one_host.stubs.service_grpc.JobServiceStub(channel).Watch(service.WatchRequest(job_id=job))
            for channel in channels]

    events = one_host.watch(job)

    assert [event.step.step for event in events if event.HasField("step")] == list(range(1, 3001))
    assert processes.resident_bytes(one_host.coordinator.pid) - before < 96 << 20
    # A watcher that starts to read now still gets everything, in order.
    late = [event.step.step for event in idle[0] if event.HasField("step")]
    assert late == list(range(1, 3001))
    for call, channel in zip(idle, channels):
        call.cancel()
        channel.close()


def test_a_flood_of_reports_is_bounded_and_delays_nobody(one_host, stub_daemon):
    agent, service = one_host.stubs.agent, one_host.stubs.service
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 3)
    stub = stub_daemon("h2")
    stub.wait_for_welcome()
    before = processes.resident_bytes(one_host.coordinator.pid)
    steps = [service.StepReport(step=step, loss=1.0) for step in range(1, 201)]
    flood = agent.RankReports(reports=[agent.RankReport(key=agent.TrainerKey(job_id=job, generation=generation, rank=0),
                                                        phase="train", last_step=10**9, steps=steps)
                                       for generation in (1, 2, 3)])
    at_flood, slowest = one_host.get(job).job.last_step, 0.0

    for _ in range(3000):
        stub.send(reports=flood)
    until = time.monotonic() + 5
    while time.monotonic() < until:
        began = time.monotonic()
        one_host.get(job)
        slowest = max(slowest, time.monotonic() - began)

    view = one_host.wait_for_step(job, at_flood + 20)
    assert (view.state_name, view.job.generation) == ("RUNNING", 1)
    assert view.job.last_step < 10**9
    assert slowest < 10, f"a call took {slowest:.2f} s while reports flooded in"
    assert processes.resident_bytes(one_host.coordinator.pid) - before < 128 << 20
