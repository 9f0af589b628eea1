"""`trainctl run`: one command with a private coordinator and daemon, for every way of ending it."""

import os
import pathlib
import signal
import tempfile

import harness
import processes
import pytest

FOREVER = {"train__steps": 1_000_000}


def start_run(cluster, *flags, **keys):
    return cluster.start_trainctl("run", cluster.write_job(**keys), "--json", *flags)


def run_folders(cluster):
    root = cluster.folder / "trainyard-runs"
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def test_run_reports_every_step_once_ends_with_done_and_leaves_no_process(cluster):
    done = cluster.run_trainctl("run", cluster.write_job(train__steps=40,
                                                         train__evaluate={"every_steps": 20, "batches": 2}),
                                "--json")

    assert not processes.descendants(), "a process outlived trainctl"
    lines = harness.events(done.stdout)
    assert lines[0]["event"] == "job" and isinstance(lines[0]["id"], str)
    steps = [line for line in lines if line["event"] == "step"]
    assert [line["step"] for line in steps] == list(range(1, 41))
    assert all(line["tokens_per_s"] > 0 and isinstance(line["loss"], float) for line in steps)
    assert [line["step"] for line in lines if line["event"] == "eval"] == [20, 40]
    assert (lines[-1]["event"], lines[-1]["state"]) == ("done", "SUCCEEDED")
    (folder,) = run_folders(cluster)
    assert folder.name == f"small-{lines[0]['id']}"
    assert harness.metrics_steps(folder) == harness.steps_of(lines)
    assert (folder / "step-00000040" / "manifest.json").is_file()


def test_a_run_folder_may_have_a_name_that_means_something_in_a_uri(cluster):
    with tempfile.TemporaryDirectory(prefix="c#", dir="/tmp") as folder:  # short, because the socket is inside
        done = cluster.run_trainctl("run", cluster.write_job(checkpoint__dir=f"{folder}/run", train__steps=2), "--json")

    assert harness.events(done.stdout)[-1]["state"] == "SUCCEEDED"


def test_run_text_ends_with_a_summary_and_a_plot(cluster):
    done = cluster.run_trainctl("run", cluster.write_job(train__steps=40))

    (folder,) = run_folders(cluster)
    assert folder.name in done.stdout
    assert "loss" in done.stdout.lower()
    assert "metrics.jsonl" in done.stdout


def test_set_overrides_the_file_with_yaml_values(cluster):
    job = cluster.write_job(train__steps=1_000_000)

    done = cluster.run_trainctl("run", job, "--json", "--set", "train.steps=3", "--set",
                                "train.optimizer.betas=[0.8, 0.9]")

    assert len(harness.steps_of(harness.events(done.stdout))) == 3


def test_ctrl_c_cancels_the_job_with_a_message(cluster):
    run = start_run(cluster, **FOREVER)
    run.wait_for_steps(3)

    run.signal(signal.SIGINT)

    assert run.wait() == 130
    assert "CANCELLED" in run.output()
    harness.assert_nothing_runs(1)


def test_a_second_ctrl_c_kills_the_job(cluster):
    run = start_run(cluster, **FOREVER)
    run.wait_for_steps(3)
    for pid in harness.trainers():
        harness.stop_process(pid)

    run.signal(signal.SIGINT)
    harness.wait_until(lambda: "cancel" in run.output().lower(), "the first Ctrl-C is acknowledged")
    run.signal(signal.SIGINT)

    assert run.wait() == 130
    assert "stopped immediately" in run.output()
    harness.assert_nothing_runs(8)  # less than the grace period of 10 s that follows a single Ctrl-C


def test_a_second_ctrl_c_says_that_a_job_on_a_cluster_may_continue(one_host):
    address = one_host.coordinator.address
    run = one_host.start_trainctl("--coordinator", address, "run", one_host.write_job(**FOREVER), "--json")
    run.wait_for_steps(3)
    one_host.coordinator.signal(signal.SIGSTOP)

    run.signal(signal.SIGINT)
    harness.wait_until(lambda: "a second interrupt ends trainctl" in run.output(), "the first Ctrl-C is acknowledged")
    run.signal(signal.SIGINT)

    assert run.wait() == 3
    assert "may continue, because the coordinator has not confirmed its cancellation" in run.output()
    assert f"To cancel it: trainctl --coordinator {address} cancel " in run.output()


def blocks_signal(pid, number):
    (blocked,) = [line.split()[1] for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                  if line.startswith("SigBlk:")]
    return int(blocked, 16) >> (number - 1) & 1 == 1


def test_one_signal_ends_a_run_that_waits_for_its_coordinator(cluster):
    run = cluster.start_trainctl("--coordinator", "127.0.0.1:1", "run", cluster.write_job(), "--json",
                                 "--reconnect-for", "1h")
    harness.wait_until(lambda: blocks_signal(run.popen.pid, signal.SIGTERM), "trainctl handles signals itself")

    run.signal(signal.SIGTERM)

    assert run.wait() == 130
    assert "interrupted before the job was submitted" in run.output() and '"event":"done"' in run.output()


@pytest.mark.parametrize("verb", ["run", "parity"])
def test_one_signal_ends_a_command_that_waits_for_its_job_file(cluster, verb):
    read_end, write_end = os.pipe()
    command = cluster.start("trainctl", [harness.BIN / "trainctl", verb, "-"], stdin=read_end)
    harness.wait_until(lambda: blocks_signal(command.pid, signal.SIGINT), "trainctl handles signals itself")

    command.signal(signal.SIGINT)

    assert command.wait() == 130, command.output()
    os.close(write_end)
    os.close(read_end)


def test_no_process_is_left_after_kill_9_of_trainctl(cluster):
    run = start_run(cluster, **FOREVER)
    run.wait_for_steps(3)

    run.signal(signal.SIGKILL)
    run.wait()

    harness.assert_nothing_runs()


def test_no_process_is_left_after_kill_9_of_trainctl_and_its_private_daemons(cluster):
    run = start_run(cluster, **FOREVER)
    run.wait_for_steps(3)
    daemons = [pid for pid in processes.descendants() if processes.name_of(pid) in ("trainyard-coord",
                                                                                    "trainyard-worke")]
    assert len(daemons) == 2

    for pid in (run.pid, *daemons):
        os.kill(pid, signal.SIGKILL)
    run.wait()

    harness.assert_nothing_runs()


def test_a_killed_trainer_of_a_run_is_restarted(cluster):
    run = start_run(cluster, **FOREVER, checkpoint__every_steps=50)
    run.wait_for_steps(60)
    first = set(harness.trainers())

    os.kill(min(first), signal.SIGKILL)

    harness.wait_until(lambda: len(set(harness.trainers()) - first) == 2, "two new trainers run")
    run.wait_for_steps(len(run.steps()) + 100)
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    steps = run.steps()
    assert steps == list(range(1, len(steps) + 1))


def test_resume_continues_the_newest_run_of_that_name(cluster):
    keys = {"checkpoint__every_steps": 50, "train__schedule": {"kind": "constant", "warmup_steps": 0}}
    run = start_run(cluster, **FOREVER, **keys)
    run.wait_for_steps(120)
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    # The learning rate does not depend on the number of steps, so the run can get its end now.
    keys["train__steps"] = run.steps()[-1] + 200
    job = cluster.write_job("uninterrupted.yaml", name="uninterrupted", **keys)
    uninterrupted = harness.steps_of(harness.events(cluster.run_trainctl("run", job, "--json").stdout))

    done = cluster.run_trainctl("run", cluster.write_job(**keys), "--json", "--resume")

    folder = next(path for path in run_folders(cluster) if path.name.startswith("small-"))
    assert harness.metrics_steps(folder) == uninterrupted
    assert harness.events(done.stdout)[-1]["state"] == "SUCCEEDED"
    assert len([path for path in run_folders(cluster) if path.name.startswith("small-")]) == 1


def test_resume_with_other_data_is_refused_unless_that_is_allowed(cluster):
    keys = {"checkpoint__dir": str(cluster.folder / "run")}
    cluster.run_trainctl("run", cluster.write_job(train__steps=4, **keys))
    cluster.text.write_text(cluster.text.read_text().replace("mesh", "MESH"))
    longer = cluster.write_job(train__steps=6, **keys)

    refused = cluster.run_trainctl("run", longer, "--resume", expect=1)
    allowed = cluster.run_trainctl("run", longer, "--resume", "--allow-data-change", "--json")

    output = refused.stdout + refused.stderr
    assert f"{cluster.text} has the hash" in output and "--allow-data-change" in output, output
    assert sorted(harness.steps_of(harness.events(allowed.stdout))) == [5, 6]


def test_a_run_folder_that_is_not_empty_is_refused_with_both_remedies(cluster, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.txt").write_text("precious")
    job = cluster.write_job(checkpoint__dir=str(full))

    done = cluster.run_trainctl("run", job, expect=2)

    assert str(full) in done.stderr and "--resume" in done.stderr, done.stderr
    assert (full / "thesis.txt").read_text() == "precious"
    harness.assert_nothing_runs(1)


def test_sample_generates_the_same_text_from_a_checkpoint_with_the_same_seed(cluster):
    cluster.run_trainctl("run", cluster.write_job(train__steps=30))
    (folder,) = run_folders(cluster)

    first, second = (cluster.run_trainctl("sample", folder, "--prompt", "the ", "--tokens", "40", "--seed", "5").stdout
                     for _ in range(2))

    assert first == second
    assert first.startswith("the ") and len(first) > 20


def test_relative_paths_are_relative_to_the_working_directory(cluster):
    pathlib.Path(cluster.folder / "jobs").mkdir()
    job = cluster.write_job("jobs/job.yaml", train__data={"text": ["text.txt"]}, train__steps=2, checkpoint__dir="here")

    cluster.run_trainctl("run", job)

    assert (cluster.folder / "here" / "step-00000002").is_dir()
