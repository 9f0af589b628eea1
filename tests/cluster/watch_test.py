"""watch, run and logs -f: a restart of the coordinator loses and repeats no event, and closing the terminal does not
affect the job."""

import pathlib
import shlex
import signal
import subprocess

import faulty_trainers
import harness
import processes
import pytest

# Steps take some milliseconds, so that a killed coordinator has restarted before the job ends.
SLOW = {"train__model": {"layers": 2, "heads": 2, "width": 64, "context": 64},
        "train__batch": {"global": 16, "micro": 2}}
FOREVER = {"train__steps": 1_000_000}


def replace_coordinator(cluster):
    """Kills the coordinator with kill -9 and starts a new one on the same port and state folder."""
    old = cluster.coordinator
    old.signal(signal.SIGKILL)
    old.wait()
    return cluster.start_coordinator(port=int(old.address.rpartition(":")[2]))


@pytest.mark.slow
def test_watch_shows_every_step_once_across_two_coordinator_kills(cluster, tmp_path):
    host = faulty_trainers.FaultyHost(cluster, tmp_path)
    host.start()
    host.slow_down(4)  # so that the job does not end before the second kill
    job = cluster.submit(train__steps=360, checkpoint__every_steps=90,
                         train__evaluate={"every_steps": 60, "batches": 2}, **SLOW)
    watch = cluster.start_trainctl("--coordinator", cluster.coordinator.address, "watch", job, "--json")
    for count in (30, 150):
        watch.wait_for_steps(count)
        replace_coordinator(cluster)
    host.clear_faults()

    assert watch.wait(240) == 0, watch.output()

    events = watch.json_lines()
    assert watch.steps() == list(range(1, 361))
    assert [line["step"] for line in events if line["event"] == "eval"] == list(range(60, 361, 60))
    assert [line["step"] for line in events if line["event"] == "checkpoint"] == [90, 180, 270, 360]
    states = [line["state"] for line in events if line["event"] == "state"]
    assert states.count("RUNNING") == 1 and states[-1] == "SUCCEEDED", states
    assert (events[-1]["event"], events[-1]["state"]) == ("done", "SUCCEEDED")
    messages = [line for line in watch.output().splitlines() if not line.startswith("{")]
    assert sum("does not answer" in line for line in messages) == 2, messages
    assert cluster.get(job).job.generation == 1


def test_run_on_a_cluster_shows_every_step_once_across_a_coordinator_kill(one_host):
    run = one_host.start_trainctl("--coordinator", one_host.coordinator.address, "run",
                                  one_host.write_job(train__steps=300, **SLOW), "--json")
    run.wait_for_steps(30)
    replace_coordinator(one_host)

    assert run.wait(240) == 0, run.output()

    assert run.steps() == list(range(1, 301))


def test_watch_gives_up_after_the_time_given_by_reconnect_for(one_host):
    job = one_host.submit(**FOREVER, **SLOW)
    watch = one_host.start_trainctl("--coordinator", one_host.coordinator.address, "watch", job, "--json",
                                    "--reconnect-for", "300ms")
    watch.wait_for_steps(3)

    one_host.coordinator.signal(signal.SIGKILL)

    assert watch.wait() == 3, watch.output()
    assert watch.json_lines()[-1]["event"] == "error"


def test_logs_follow_continues_after_a_coordinator_kill(one_host):
    job = one_host.submit(train__steps=300, checkpoint__every_steps=20, **SLOW)
    logs = one_host.start_trainctl("--coordinator", one_host.coordinator.address, "logs", job, "-f", "--rank", "0",
                                   "--json")
    one_host.wait_for_step(job, 30)
    harness.wait_until(lambda: logs.json_lines(), "a line of output is shown")
    replace_coordinator(one_host)

    assert logs.wait(240) == 0, logs.output()

    shown = [line["text"] for line in logs.json_lines() if line["stream"] == "stdout"]
    stored = [line["text"] for line in harness.events(one_host.trainctl("logs", job, "--rank", "0", "--json").stdout)
              if line["stream"] == "stdout"]
    assert shown == stored
    assert any("finished" in line for line in shown)


def test_a_value_of_reconnect_for_that_is_no_duration_is_refused(cluster):
    done = cluster.run_trainctl("--coordinator", "127.0.0.1:1", "watch", "k3x7q2ab", "--reconnect-for", "soon",
                                expect=2)

    assert "trainctl: " in done.stderr and "soon" in done.stderr


def watch_command_of(folder):
    return (pathlib.Path(folder) / "watch").read_text().splitlines()[0]


@pytest.mark.slow
def test_training_continues_after_the_terminal_of_run_is_closed_and_watch_shows_it(cluster, tmp_path, monkeypatch):
    gate = tmp_path / "gate"  # the first save waits for it, and so does the end of the job
    monkeypatch.setenv("TRAINYARD_FAULT_POINTS", f"rank=0,point=snapshot,nth=1,do=wait:{gate}")
    job = cluster.write_job(train__steps=250, checkpoint__every_steps=125, **SLOW)
    run = cluster.start_trainctl("run", job, "--json")
    run.wait_for_steps(20)
    folder = next((cluster.folder / "trainyard-runs").iterdir())
    trainers = set(harness.trainers())
    assert trainers

    run.signal(signal.SIGHUP)

    assert run.wait() == 0, run.output()
    gate.touch()
    command = watch_command_of(folder)
    assert command in run.output()
    assert run.json_lines()[-1]["event"] == "done"
    assert "trainctl --coordinator unix:" in command
    watched = subprocess.run([*shlex.split(command), "--json"], capture_output=True, text=True, timeout=240,
                             check=False)
    assert watched.returncode == 0, watched.stdout[-2000:] + watched.stderr
    lines = harness.events(watched.stdout)
    assert [line["step"] for line in lines if line["event"] == "step"] == list(range(1, 251))
    assert (lines[-1]["event"], lines[-1]["state"]) == ("done", "SUCCEEDED")
    assert harness.metrics_steps(folder) == harness.steps_of(lines)
    assert (folder / "step-00000250" / "manifest.json").is_file()
    # The second line says how to stop the daemons; after the end of the job they also exit on their own.
    daemons = (folder / "watch").read_text().splitlines()[1].rpartition("kill ")[2].split()
    assert sorted(map(int, daemons)) == sorted(pid for pid in processes.descendants()
                                               if processes.name_of(pid) in ("trainyard-coord", "trainyard-worke"))
    harness.wait_until(lambda: not any(processes.name_of(int(pid)) for pid in daemons), "the daemons exit", 60)
    harness.assert_nothing_runs()


def test_a_hangup_of_run_on_a_cluster_only_stops_watching(one_host):
    run_folder = one_host.folder / "run"
    run = one_host.start_trainctl("--coordinator", one_host.coordinator.address, "run",
                                  one_host.write_job(**FOREVER, **SLOW, checkpoint__dir=str(run_folder)), "--json")
    run.wait_for_steps(3)

    run.signal(signal.SIGHUP)

    assert run.wait() == 0, run.output()
    job = run.json_lines()[0]["id"]
    assert watch_command_of(run_folder).endswith(f"--coordinator {one_host.coordinator.address} watch {job}")
    step = one_host.get(job).job.last_step
    one_host.wait_for_step(job, step + 5)
