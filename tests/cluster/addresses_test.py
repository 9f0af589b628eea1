"""Addresses that are unreachable, in use or not loopback, and state folders with long paths or in use."""

import http.client
import socket

import harness
import pytest


def test_an_unreachable_coordinator_gives_exit_code_3_with_the_address(cluster):
    address = f"127.0.0.1:{harness.free_port()}"

    for verb in (["list"], ["status", "abcd1234"], ["submit", cluster.write_job()]):
        done = cluster.run_trainctl("--coordinator", address, *verb, expect=3)
        assert address in done.stderr, done.stderr


def test_a_port_in_use_is_refused_with_the_address(cluster):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"

        program = cluster.start("coordinator", [harness.BIN / "trainyard-coordinator", "--listen", address, "--state",
                                                cluster.folder / "state"])

        assert program.wait() not in (0, None)
        assert address in program.output() or address.rpartition(":")[2] in program.output(), program.output()


def test_a_second_coordinator_on_the_same_state_is_refused(one_host):
    program = one_host.start("second", [harness.BIN / "trainyard-coordinator", "--listen",
                                        f"127.0.0.1:{harness.free_port()}",
                                        "--state", one_host.folder / "coordinator", "--metrics", ""])

    assert program.wait() != 0
    assert str(one_host.folder / "coordinator") in program.output(), program.output()


def test_a_state_folder_on_a_path_of_200_characters_works(cluster):
    def long_folder(name):
        folder = cluster.folder / name
        while len(str(folder)) < 200:
            folder = folder / ("d" * min(40, max(1, 199 - len(str(folder)))))
        return folder

    cluster.start_coordinator(state=long_folder("coordinator-long"))
    cluster.start_worker("h1", slots=2, state=long_folder("worker-long"))

    job = cluster.submit(run_folder=long_folder("run-long"), train__steps=5)

    assert cluster.wait_for_end(job).state_name == "SUCCEEDED"


def test_run_below_a_working_directory_of_200_characters_works(cluster):
    folder = cluster.folder
    while len(str(folder)) < 200:
        folder = folder / ("w" * 40)
    folder.mkdir(parents=True)

    cluster.run_trainctl("run", cluster.write_job(train__steps=3), cwd=folder)


@pytest.mark.parametrize("command", [
    lambda port: ["trainyard-coordinator", "--listen", f"0.0.0.0:{port}", "--state", "state"],
    lambda port: ["trainyard-worker", "--coordinator", f"198.51.100.7:{port}", "--state", "state", "--name", "h1"],
    lambda port: ["trainctl", "--coordinator", f"198.51.100.7:{port}", "list"],
], ids=["coordinator", "worker", "trainctl"])
def test_an_address_other_than_loopback_needs_allow_plaintext(cluster, command):
    name, *arguments = command(harness.free_port())

    program = cluster.start(name, [harness.BIN / name, *arguments])

    assert program.wait() == 2
    assert "--allow-plaintext" in program.output(), program.output()


def test_with_allow_plaintext_a_coordinator_listens_on_all_addresses(cluster):
    port = harness.free_port()

    program = cluster.start("public", [harness.BIN / "trainyard-coordinator", "--listen", f"0.0.0.0:{port}", "--state",
                                       cluster.folder / "state", "--metrics", "", "--allow-plaintext"])

    harness.wait_until(lambda: cluster.run_trainctl("--coordinator", f"127.0.0.1:{port}", "list",
                                                    expect=None).returncode == 0,
                       "the coordinator answers")
    assert program.alive()


def test_the_metrics_port_refuses_every_path_other_than_metrics(one_host):
    connection = http.client.HTTPConnection("127.0.0.1", one_host.metrics_port, timeout=60)
    connection.request("GET", "/nothing-here")
    assert connection.getresponse().status in (404, 405)
