"""The choice of MKL's kernels, on hosts that act as if their CPU were not Intel's."""

import os
import subprocess

import harness
import tokens


def start_host(cluster, name, state):
    """Starts a host with one slot. Its user has a separate state folder, which lacks the coordinator's token."""
    cluster.start_worker(name, 1, "--metrics", "", "--health", "", "--token-file",
                         tokens.path_of(cluster.coordinator.address),
                         prefix=["env", f"XDG_STATE_HOME={state}", "TRAINYARD_CPU=amd"])


def stored_speeds(state):
    """The files with measured speeds. Each is named after a kind of CPU and a set of shapes."""
    return [path for path in (state / "trainyard" / "kernels").iterdir() if path.name != "lock"]


def run_job(cluster, **keys):
    job = cluster.submit(train__steps=3, resources={"ranks": 2, "device": "cpu"}, **keys)
    view = cluster.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", cluster.logs_of(job)
    decision = next(found for found in view.job.decisions if found.key == "resources.product_kernels")
    first_host = next(rank.host for rank in view.job.ranks if rank.rank == 0)
    return decision, first_host


def test_a_probe_with_several_threads_measures_the_kernels(tmp_path):
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TRAINYARD_CPU": "amd"}
    probe = [harness.BIN / "trainyard-trainer", "--probe", "--threads", "2", "--matmul-size", "64",
             "--all-reduce-bytes", "65536"]

    done = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=True, env=environment)

    assert "no measurement can be used" not in done.stdout
    assert stored_speeds(tmp_path)


def test_hosts_with_equal_cpus_measure_once_per_model_and_choose_the_same_kernels(cluster, tmp_path):
    states = {name: tmp_path / name for name in ("h1", "h2")}
    cluster.start_coordinator()
    for name, state in states.items():
        start_host(cluster, name, state)

    decision, _ = run_job(cluster)

    assert decision.value in ("mkl_intel", "mkl") and "no measurement can be used" not in decision.reason, decision
    files = {name: stored_speeds(state) for name, state in states.items()}
    assert [len(found) for found in files.values()] == [1, 1]
    assert files["h1"][0].name == files["h2"][0].name

    # Timings of equal hosts may differ; all ranks use the choice of the lowest rank. A file contains the GFLOP/s with
    # mkl_intel and with mkl.
    for slower_with_mkl_intel in ("h1", "h2"):
        for name, found in files.items():
            found[0].write_text("50 100\n" if name == slower_with_mkl_intel else "100 50\n")
        decision, first_host = run_job(cluster)
        assert decision.value == ("mkl" if first_host == slower_with_mkl_intel else "mkl_intel"), decision
        assert "a lower rank with the same kind of CPU chose otherwise" in decision.reason, decision

    # Another model has products of other shapes, for which each host measures again.
    run_job(cluster, train__model__width=24)
    assert [len(stored_speeds(state)) for state in states.values()] == [2, 2]
