"""Interfaces for operators and other services: /metrics, gRPC health and reflection, logs as JSON, a clean shutdown."""

import json
import pathlib
import re
import signal
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import harness

SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^}]*\})? (-?[0-9.eE+-]+|[Nn]a[Nn]|[+-]Inf)$')


def scrape(cluster):
    """{name: {labels: value}} of /metrics, and {name: type}. Every line must be in the text format."""
    body = urllib.request.urlopen(f"http://127.0.0.1:{cluster.metrics_port}/metrics", timeout=60).read().decode()
    samples, types = {}, {}
    for line in body.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            types[name] = kind
        elif line and not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, f"not a line of the text format: {line!r}"
            samples.setdefault(match[1], {})[match[2] or ""] = float(match[3])
    return samples, types


def family_of(name, types):
    for suffix in ("", "_bucket", "_sum", "_count"):
        if suffix and name.endswith(suffix) and name.removesuffix(suffix) in types:
            return name.removesuffix(suffix)
    return name


def test_metrics_are_well_formed_documented_and_count_jobs(one_host):
    job = one_host.submit(train__steps=5)
    one_host.wait_for_end(job)

    samples, types = scrape(one_host)

    ours = {family_of(name, types) for name in samples if name.startswith("trainyard_")}
    assert ours, "no trainyard_* metric"
    documented = (harness.ROOT / "docs" / "metrics.md").read_text()
    missing = sorted(name for name in ours if name not in documented)
    assert not missing, f"docs/metrics.md does not list {missing}"
    for name in ours:
        assert not re.search(r"_(ms|millis|kb|mb|minutes)(_total)?$", name), f"{name} is not in a base unit"
        assert types[name] != "counter" or name.endswith("_total"), name
    slots = {name: sum(values.values()) for name, values in samples.items() if "slots" in name}
    assert 2.0 in slots.values(), slots


def test_metrics_show_memory_by_rank_and_kind_and_exposed_communication(one_host):
    job = one_host.submit(train__steps=1000000, parallel={"data": "fsdp"})

    def reported():
        samples, _ = scrape(one_host)
        memory = samples.get("trainyard_rank_memory_bytes", {})
        ranks = [rank for rank in (0, 1) if any(f'rank="{rank}"' in labels for labels in memory)]
        return samples if len(ranks) == 2 and "trainyard_job_exposed_communication_seconds" in samples else None

    samples = harness.wait_until(reported, "both ranks have reported")
    status = one_host.trainctl("status", job).stdout
    one_host.trainctl("cancel", job)

    memory, peaks = samples["trainyard_rank_memory_bytes"], samples["trainyard_rank_memory_peak_bytes"]
    assert set(memory) == set(peaks)
    for rank in (0, 1):
        kinds = {re.search(r'kind="(\w+)"', labels)[1] for labels in memory if f'rank="{rank}"' in labels}
        assert kinds == {"parameters", "gradients", "optimizer", "buffers", "activations", "host", "reserved",
                         "snapshots"}
    optimizer = [value for labels, value in memory.items() if 'kind="optimizer"' in labels]
    assert all(value > 0 for value in optimizer), memory
    (exposed,) = samples["trainyard_job_exposed_communication_seconds"].values()
    assert exposed >= 0
    assert "memory now (and peak)" in status


def test_health_is_serving_and_reflection_lists_the_services(one_host):
    channel = grpc.insecure_channel(one_host.coordinator.address)

    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
    services = ProtoReflectionDescriptorDatabase(channel).get_services()

    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert {"trainyard.v1.JobService", "trainyard.v1.AgentService", "grpc.health.v1.Health"} <= set(services)


def test_sigterm_stops_the_coordinator_cleanly_and_keeps_the_store(one_host):
    job = one_host.submit(train__steps=3)
    one_host.wait_for_end(job)
    port = int(one_host.coordinator.address.rpartition(":")[2])

    one_host.coordinator.signal(signal.SIGTERM)
    assert one_host.coordinator.wait() == 0
    one_host.start_coordinator(port=port)

    assert one_host.get(job).state_name == "SUCCEEDED"


def test_sigterm_stops_a_daemon_and_leaves_its_trainers_running(one_host):
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 2)
    worker = next(program for program in one_host.programs if "worker" in program.log.name)
    before = set(harness.trainers())

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert set(harness.trainers()) == before


def test_with_stop_trainers_the_trainers_end_with_the_daemon(cluster):
    cluster.start_coordinator()
    worker = cluster.start_worker("h1", 2, "--stop-trainers")
    job = cluster.submit(train__steps=1_000_000)
    cluster.wait_for_step(job, 2)

    worker.signal(signal.SIGTERM)

    worker.wait()
    harness.wait_until(lambda: not harness.trainers(), "no trainer is left")


def test_with_log_format_json_each_log_line_has_time_level_and_message(cluster):
    coordinator = cluster.start_coordinator("--log-format", "json")
    coordinator.signal(signal.SIGTERM)
    coordinator.wait()

    lines = [json.loads(line) for line in coordinator.output().splitlines() if line.startswith("{")]
    assert lines
    assert all({"time", "level", "message"} <= set(line) for line in lines), lines[0]


def test_config_files_are_read_strictly_and_flags_override_them(cluster):
    config = pathlib.Path(cluster.folder / "coordinator.yaml")
    config.write_text("listen: 127.0.0.1:1\nstaet: /nowhere\n")

    program = cluster.start("coordinator", [harness.BIN / "trainyard-coordinator", "--config", config])

    assert program.wait() == 2
    assert "staet" in program.output() and "state" in program.output() and "coordinator.yaml:2" in program.output()
    config.write_text(f"listen: 127.0.0.1:1\nmetrics: ''\nstate: {cluster.folder}/from-file\n")
    cluster.start_coordinator("--config", config)
    assert not (cluster.folder / "from-file").exists()
