"""Bad and too many requests on the gRPC ports: they are refused within limits and counted, and the programs stay
responsive and small."""

import concurrent.futures
import random
import socket
import time
import urllib.request

import grpc

import harness
import processes
import pytest
import tokens

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
JOBS_UNFINISHED = 10_000  # limits::kJobsUnfinished
MEGABYTE = 1 << 20


def garbage():
    """Byte strings that no gRPC client sends, with a name each."""
    noise = random.Random(7)
    yield "noise", noise.randbytes(5000)
    yield "HTTP/1", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield "TLS", bytes.fromhex("16030100a5010000a10303") + noise.randbytes(154)
    yield "half a preface", PREFACE[:10]
    yield "a frame of 16 MB", PREFACE + SETTINGS + bytes([0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 1]) + b"x" * 5000
    yield "headers that are not HPACK", PREFACE + SETTINGS + bytes([0, 0, 100, 1, 4, 0, 0, 0, 1]) + noise.randbytes(100)
    yield "a thousand settings", PREFACE + SETTINGS * 1000
    yield "resets of unknown streams", PREFACE + SETTINGS + bytes([0, 0, 4, 3, 0, 0, 0, 0, 9, 0, 0, 0, 8]) * 1000
    for _ in range(20):
        yield "noise after the preface", PREFACE + SETTINGS + noise.randbytes(noise.randrange(1, 400))


def send(address, data):
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.settimeout(0.2)
        try:
            connection.sendall(data)
            while connection.recv(65536):
                pass
        except (TimeoutError, ConnectionError):
            pass


def test_garbage_on_the_grpc_ports_is_refused_and_harms_nobody(cluster):
    cluster.start_coordinator()
    health = f"127.0.0.1:{harness.free_port()}"
    worker = cluster.start_worker("h1", 2, "--health", health)
    job = cluster.submit(train__steps=1_000_000)
    cluster.wait_for_step(job, 2)
    before = processes.resident_bytes(cluster.coordinator.pid), processes.resident_bytes(worker.pid)
    lines = cluster.coordinator.output().count("\n"), worker.output().count("\n")

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda one: send(*one), [(address, data) for _, data in garbage()
                                               for address in (cluster.coordinator.address, health)]))

    at = cluster.get(job).job.last_step
    assert cluster.wait_for_step(job, at + 5).state_name == "RUNNING"
    cluster.run_trainctl("health", health)
    for program, memory, count in zip((cluster.coordinator, worker), before, lines):
        assert processes.resident_bytes(program.pid) < memory + 64 * MEGABYTE
        assert program.output().count("\n") < count + 60, program.output()[-4000:]


def test_an_oversized_request_is_refused_and_uses_no_memory(cluster, stubs):
    cluster.start_coordinator()
    before = processes.resident_bytes(cluster.coordinator.pid)
    request = stubs.service.CancelRequest(job_id="nosuchjob", reason="x" * (20 * MEGABYTE))
    large = stubs.service.CancelRequest(job_id="nosuchjob", reason="x" * (2 * MEGABYTE))

    for _ in range(5):
        try:
            cluster.jobs.Cancel(request, timeout=60)
            raise AssertionError("a message of 20 MB was accepted")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
        try:
            cluster.jobs.Cancel(large, timeout=60)
            raise AssertionError("a reason of 2 MB was accepted")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "at most 4000 are accepted" in error.details()
    for _ in range(5):  # last, because this ends the connection
        try:
            cluster.jobs.List(stubs.service.ListRequest(), timeout=60, metadata=[("big", "y" * (1 * MEGABYTE))])
            raise AssertionError("metadata of 1 MB was accepted")
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE), error

    cluster.server_info()
    assert processes.resident_bytes(cluster.coordinator.pid) < before + 100 * MEGABYTE


def test_ten_thousand_submissions_in_a_burst_are_accepted_up_to_the_limit(cluster, stubs):
    cluster.start_coordinator()
    extra = 200
    spec = stubs.job.JobSpec(name="burst", command=stubs.job.Command(argv=["true"], workdir="/tmp"),
                             resources=stubs.job.Resources(ranks=4))
    channels = [tokens.dial(cluster.coordinator.address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(4)]
    submitters = [stubs.service_grpc.JobServiceStub(channel) for channel in channels]
    latencies, codes = [], {}

    def submit(number):
        request = stubs.service.SubmitRequest(spec=spec, job_id=f"burst{number:07d}", default_run_root="/runs")
        while True:
            try:
                submitters[number % 4].Submit(request, timeout=60)
                return "OK"
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    return error.code().name
                time.sleep(0.1)  # too many requests wait; the id makes the retry safe

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        calls = [pool.submit(submit, number) for number in range(JOBS_UNFINISHED + extra)]
        while not all(one.done() for one in calls):
            begin = time.monotonic()
            assert cluster.jobs.GetServerInfo(stubs.service.GetServerInfoRequest(), timeout=60).version
            latencies.append(time.monotonic() - begin)
            time.sleep(0.2)
        for one in calls:
            codes[one.result()] = codes.get(one.result(), 0) + 1

    assert codes == {"OK": JOBS_UNFINISHED, "RESOURCE_EXHAUSTED": extra}
    assert max(latencies) < 10, f"{max(latencies):.1f} s"
    assert cluster.server_info().jobs_unfinished == JOBS_UNFINISHED
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{cluster.metrics_port}/metrics", timeout=60).read().decode()
    counts = [line for line in metrics.splitlines() if line.startswith("trainyard_rpcs_total") and "Submit" in line]
    refused = [int(float(line.split()[-1])) for line in counts if "RESOURCE_EXHAUSTED" in line.upper()]
    assert refused == [extra], counts
    # The log does not have a line for each refusal.
    assert cluster.coordinator.output().count("unfinished, which is the limit") <= 1
    assert processes.resident_bytes(cluster.coordinator.pid) < 400 * MEGABYTE
    for channel in channels:
        channel.close()


@pytest.mark.slow
def test_readers_of_output_that_never_read_use_little_memory_and_delay_nobody(one_host, stubs):
    size = 6 * MEGABYTE
    script = (f"import sys, time\nfor i in range({size // 64}): sys.stdout.write('%063d\\n' % i)\n"
              "sys.stdout.flush(); time.sleep(600)")
    job = one_host.jobs.Submit(stubs.service.SubmitRequest(
        spec=stubs.job.JobSpec(name="talks", command=stubs.job.Command(argv=["python3", "-c", script], workdir="/tmp"),
                               resources=stubs.job.Resources(ranks=1)), default_run_root="/tmp"), timeout=60).job_id
    one_host.wait_for_state(job, "RUNNING")
    before = processes.resident_bytes(one_host.coordinator.pid)
    request = stubs.service.LogsRequest(job_id=job, follow=True)
    channels = [tokens.dial(one_host.coordinator.address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(8)]
    idle = [stubs.service_grpc.JobServiceStub(channel).Logs(request) for channel in channels]
    last = size // 64 - 1

    # Another reader of the same rank gets every line, although these readers never read.
    expected = 0
    for line in one_host.jobs.Logs(request, timeout=60):
        assert int(line.text) == expected
        expected += 1
        if expected > last:
            break

    assert expected == last + 1
    assert processes.resident_bytes(one_host.coordinator.pid) < before + 100 * MEGABYTE
    assert one_host.get(job).state_name == "RUNNING"
    for call in idle:
        call.cancel()
    for channel in channels:
        channel.close()
    one_host.trainctl("cancel", job)
