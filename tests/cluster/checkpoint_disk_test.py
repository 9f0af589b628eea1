"""Saves on full, read-only or slow disks and with a clock that is set back: failures are reported and training
continues."""

import os
import shutil
import signal
import subprocess

import pytest

import harness

SAVE_EVERY = 20


def start_with_rules(cluster, monkeypatch, rules):
    monkeypatch.setenv("TRAINYARD_FAULT_POINTS", rules)
    cluster.start_coordinator()
    cluster.start_worker("h1", slots=2)


def notices(cluster, job, text):
    return [event.notice.text for event in cluster.watch(job) if event.HasField("notice")
            and text in event.notice.text]


def checkpoint_names(run_folder):
    return {path.name for path in run_folder.iterdir() if path.name.startswith("step-")}


ERRORS = {"enospc": "No space left on device", "eio": "Input/output error", "erofs": "Read-only file system"}
POINTS = {"create:shard:before": "enospc", "sync:shard:before": "eio", "create:manifest:before": "erofs",
          "rename:partial:before": "enospc"}  # each with the fault that ./dev test injects there


@pytest.mark.parametrize("point, fault, error", [
    pytest.param(point, fault, error, marks=() if POINTS[point] == fault else pytest.mark.long)
    for point in POINTS for fault, error in ERRORS.items()])
def test_a_failed_save_is_reported_with_its_path_and_causes_no_restart(cluster, tmp_path, monkeypatch, point, fault,
                                                                       error):
    start_with_rules(cluster, monkeypatch, f"rank=0,point={point},nth=2,do={fault}")

    job = cluster.submit(run_folder=tmp_path / "run", train__steps=4 * SAVE_EVERY, checkpoint__every_steps=SAVE_EVERY)

    view = cluster.wait_for_end(job)
    assert (view.state_name, view.job.restarts) == ("SUCCEEDED", 0), view.job.reason
    reported = notices(cluster, job, "could not save")
    assert len(reported) == 1, reported
    for text in (error, str(tmp_path / "run"), "training continues"):
        assert text in reported[0], reported
    assert view.job.checkpoints[-1].step == 4 * SAVE_EVERY
    assert not [name for name in checkpoint_names(tmp_path / "run") if "." in name]
    cluster.trainctl("checkpoint", "verify", tmp_path / "run")


def test_a_slow_disk_loses_no_save_and_causes_no_restart(cluster, tmp_path, monkeypatch):
    start_with_rules(cluster, monkeypatch, "point=append:*:before,do=slow:5ms;point=sync:*:before,do=slow:100ms")

    job = cluster.submit(run_folder=tmp_path / "run", train__steps=3 * SAVE_EVERY, checkpoint__every_steps=SAVE_EVERY)

    view = cluster.wait_for_end(job)
    assert (view.state_name, view.job.restarts) == ("SUCCEEDED", 0), view.job.reason
    assert [checkpoint.step for checkpoint in view.job.checkpoints] == [SAVE_EVERY, 2 * SAVE_EVERY, 3 * SAVE_EVERY]


def test_mistakes_in_the_fault_point_variable_fail_the_job_and_are_named(cluster, tmp_path, monkeypatch):
    start_with_rules(cluster, monkeypatch, "point=sync:shrad:before,do=kill;point=grant,do=explode")

    job = cluster.submit(run_folder=tmp_path / "run", train__steps=5)

    view = cluster.wait_for_end(job)
    assert view.state_name == "FAILED"
    for text in ("TRAINYARD_FAULT_POINTS", "sync:shrad:before", "do=explode"):
        assert text in view.job.reason, view.job.reason


class WallClock:
    """Starts a coordinator and a daemon; `go_back` sets their wall clocks, and those of trainers, back by an hour."""

    def __init__(self, cluster, folder, monkeypatch):
        self.file = folder / "back"
        programs = folder / "programs"
        programs.mkdir()
        library = programs / "clock_back.so"
        source = harness.ROOT / "tests" / "cluster" / "clock_back.c"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", source, "-o", library], check=True)
        for name in ("trainyard-worker", "trainyard-shim"):
            shutil.copy2(harness.BIN / name, programs / name)
        trainer = programs / "trainyard-trainer"
        trainer.write_text(f'#!/bin/sh\nexport LD_PRELOAD={library} CLOCK_BACK={self.file}\n'
                           f'exec {harness.BIN}/trainyard-trainer "$@"\n')
        trainer.chmod(0o755)
        with monkeypatch.context() as environment:
            environment.setenv("CLOCK_BACK", str(self.file))
            environment.setenv("LD_PRELOAD", str(library))
            cluster.start_coordinator()
            cluster.start_worker("h1", 2, "--metrics", "", "--health", "", binary=programs / "trainyard-worker")

    def go_back(self):
        self.file.touch()


def test_setting_the_clock_back_delays_no_save_and_hides_no_checkpoint(cluster, tmp_path, monkeypatch):
    clock = WallClock(cluster, tmp_path, monkeypatch)
    job = cluster.submit(run_folder=tmp_path / "run", train__steps=1_000_000, checkpoint__every_steps=SAVE_EVERY)
    newest = lambda: max((checkpoint.step for checkpoint in cluster.get(job).job.checkpoints), default=0)
    before = harness.wait_until(newest, "a checkpoint is saved")

    clock.go_back()
    harness.wait_until(lambda: newest() >= before + 3 * SAVE_EVERY, "three more checkpoints are saved")
    newest_at_kill = newest()
    os.kill(cluster.get(job).pid_of(0), signal.SIGKILL)
    harness.wait_until(lambda: cluster.get(job).job.generation == 2, "there is a next generation")
    last_of_first = cluster.wait_for_state(job, "RUNNING").job.last_step
    harness.wait_until(lambda: newest() > last_of_first, "the next generation saves, too")
    cluster.trainctl("cancel", job)

    view = cluster.wait_for_end(job)
    assert (view.state_name, view.job.restarts) == ("CANCELLED", 1), view.job.reason
    restored = notices(cluster, job, "restored from")
    assert int(restored[0].partition("from step ")[2].partition(",")[0]) >= newest_at_kill, restored
    assert not [name for name in checkpoint_names(tmp_path / "run") if "." in name]
