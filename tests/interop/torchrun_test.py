"""Scripts written for torchrun, started unchanged by torchrun and by `trainctl launch`: the same losses, the same
restarts."""

import os
import pathlib
import re
import subprocess
import sys

import harness
import processes
import pytest

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
RANKS = "--nproc-per-node=2"


@pytest.fixture(autouse=True)
def python_of_the_tests(monkeypatch):
    """`trainctl launch` takes python3 from PATH; the scripts need the interpreter that has torch."""
    monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")


def launch(folder, *arguments, expect=0):
    processes.start_reaper()
    done = subprocess.run([harness.BIN / "trainctl", "launch", *map(str, arguments)], capture_output=True, text=True,
                          timeout=240, cwd=folder, stdin=subprocess.DEVNULL)
    assert done.returncode == expect, done
    return done


def torchrun(folder, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, check=True)


def losses(done):
    """The lines with losses, without the prefix that names the rank."""
    return [re.sub(r"^\[\w+\]:", "", line) for line in done.stdout.splitlines() if " loss " in line]


@pytest.mark.slow
@pytest.mark.parametrize("script, arguments, count", [
    pytest.param("train_ddp.py", ["--epochs", 2], 8, id="ddp-sampler-accumulation"),
    pytest.param("train_fsdp.py", ["--save", "saved"], 6, id="fsdp2"),
    pytest.param("train_trainer.py", ["saved"], 6, id="transformers-trainer", marks=pytest.mark.long),
    pytest.param("train_elastic.py", ["saved"], 6, id="elastic", marks=pytest.mark.long),
])
def test_a_script_has_the_losses_of_torchrun(tmp_path, monkeypatch, script, arguments, count):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()

    ours = losses(launch(tmp_path / "ours", RANKS, SCRIPTS / script, *arguments))

    assert len(ours) == count
    assert ours == losses(torchrun(tmp_path / "theirs", RANKS, SCRIPTS / script, *arguments))


@pytest.mark.slow
def test_a_killed_rank_restarts_the_script_which_resumes_from_its_save(tmp_path):
    done = launch(tmp_path, RANKS, "--max-restarts", "1", SCRIPTS / "train_resume.py", tmp_path / "ours", "--die-at", 2)

    ours = losses(done)
    assert [line.split(" loss")[0] for line in ours] == [f"epoch {epoch}" for epoch in range(4)]
    assert "rank 1 on local was killed by signal 9 (SIGKILL)" in done.stderr
    assert "restart 1 of 1" in done.stderr


@pytest.mark.long
def test_a_restart_has_the_losses_of_an_undisturbed_torchrun(tmp_path):
    script = SCRIPTS / "train_resume.py"

    ours = losses(launch(tmp_path, RANKS, "--max-restarts=1", script, tmp_path / "ours", "--die-at", 2))

    assert ours == losses(torchrun(tmp_path, RANKS, script, tmp_path / "theirs"))


def test_the_message_of_the_first_failing_rank_is_shown(tmp_path):
    done = launch(tmp_path, RANKS, SCRIPTS / "fails.py", expect=1)

    assert "rank 1 on local exited with code 1: ValueError: no data for rank 1" in done.stderr
    assert 'raise ValueError("no data for rank 1")' in done.stderr
