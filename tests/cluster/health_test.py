"""trainctl health against a coordinator, a daemon, and what is neither."""

import json
import signal
from concurrent import futures

import grpc
import harness


def health(cluster, *arguments, expect):
    return cluster.run_trainctl("health", *arguments, expect=expect)


def test_health_reports_the_server_and_its_services_without_a_token(cluster):
    cluster.start_coordinator()
    address = cluster.coordinator.address
    port = harness.free_port()
    cluster.start_worker("h1", 1, "--metrics", "", "--health", f"127.0.0.1:{port}")
    daemon, service = f"127.0.0.1:{port}", ("--service", "trainyard.v1.AgentService")

    assert "is serving" in health(cluster, address, "--service", "trainyard.v1.JobService", expect=0).stdout
    assert json.loads(health(cluster, daemon, *service, "--json", expect=0).stdout) == {
        "address": daemon, "service": service[1], "status": "SERVING"}
    assert "has no service 'x'" in health(cluster, address, "--service", "x", expect=2).stderr

    cluster.coordinator.signal(signal.SIGKILL)
    harness.wait_until(lambda: cluster.run_trainctl("health", daemon, *service, expect=None).returncode == 1,
                       "the daemon that lost its coordinator is not serving")
    assert "is not serving" in health(cluster, daemon, *service, expect=1).stdout
    assert health(cluster, daemon, expect=0).stdout == f"the server at {daemon} is serving\n"
    assert address in health(cluster, address, expect=3).stderr


def test_health_refuses_what_is_no_address_and_servers_without_grpc(cluster):
    cluster.start_coordinator()

    assert "no server is named" in health(cluster, expect=2).stderr
    assert "'nowhere' is not the address" in health(cluster, "nowhere", expect=2).stderr
    assert "--allow-plaintext" in health(cluster, "192.0.2.1:7070", expect=2).stderr
    metrics = f"127.0.0.1:{cluster.metrics_port}"
    refused = health(cluster, metrics, "--timeout", "0.5", "--json", expect=3)
    assert metrics in refused.stdout and metrics in refused.stderr


def test_health_refuses_a_grpc_server_without_the_health_service(cluster):
    server = grpc.server(futures.ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()

    refused = health(cluster, address, expect=2)

    server.stop(None)
    assert f"the server at {address} has no gRPC health service" in refused.stderr
