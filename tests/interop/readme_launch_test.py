"""The commands of the README's section about torchrun and Accelerate, word for word, with real scripts."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import harness
import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = pathlib.Path(__file__).parent / "scripts"
# A script without torch, which prints its rank: sixteen processes with torch would need minutes.
LIGHT = "import os, sys\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], sys.argv[1:])\n"


def commands():
    """The commands of the two blocks of the section, without their comments."""
    text = (ROOT / "README.md").read_text().split("## From torchrun to `trainctl launch`")[1].split("\n## ")[0]
    blocks = [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    return [[shlex.split(line, comments=True) for line in block] for block in blocks]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with build/bin, as in the source tree, with the python3 that has torch, and without GPUs."""
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "bin").symlink_to(harness.BIN)
    monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("train_ddp.py", "train_accelerate.py", "leave.py"):
        shutil.copy(SCRIPTS / name, tmp_path)
    return tmp_path


def losses(command, folder):
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return [re.sub(r"^\[\w+\]:", "", line) for line in done.stdout.splitlines() if " loss " in line]


@pytest.mark.long
def test_a_user_of_torchrun_runs_the_same_script(folder, cluster):
    before, now, on_a_cluster = commands()[0]
    shutil.copy(folder / "train_ddp.py", folder / "train.py")

    theirs = losses(before, folder)

    assert len(theirs) == 8 and losses(now, folder) == theirs
    cluster.start_coordinator()
    for name in ("w1", "w2"):
        cluster.start_worker(name, 8)
    (cluster.folder / "train.py").write_text(LIGHT)
    # The only change: the tests use a free port.
    assert on_a_cluster[:3] == ["build/bin/trainctl", "--coordinator", "head:7070"]
    done = cluster.run_trainctl("--coordinator", cluster.coordinator.address, *on_a_cluster[3:])
    assert sorted(done.stdout.splitlines()) == sorted(
        f"[default{rank}]:rank {rank} of 16 ['--lr', '0.1']" for rank in range(16))


@pytest.mark.long
def test_a_user_of_accelerate_runs_the_same_script(folder):
    before, now, without_a_file = commands()[1]
    shutil.copy(folder / "train_accelerate.py", folder / "train.py")
    subprocess.run(["build/bin/trainctl", "config", "--accelerate", "--yes", "--set", "resources.ranks=2", "--set",
                    "resources.device=cuda", "--set", "train.precision=fp32"], cwd=folder, check=True, timeout=60,
                   capture_output=True)

    theirs = losses(before, folder)

    assert len(theirs) == 4 and losses(now, folder) == theirs
    assert len(losses(without_a_file, folder)) == 4
