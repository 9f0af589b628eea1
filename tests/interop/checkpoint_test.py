"""`trainctl checkpoint` on folders without a job: listing, verification and removal, its JSON and its exit codes. The
Python library safetensors reads every shard."""

import fcntl
import json
import os
import pty
import subprocess

import harness
import numpy
import pytest
from safetensors import safe_open

SHARD = "shard-00000.safetensors"


def write(folder, step):
    """Writes a small checkpoint."""
    subprocess.run([harness.BIN / "tests" / "safetensors_interop", "write", folder, str(step)], check=True,
                   stdout=subprocess.DEVNULL)
    return folder / f"step-{step:08}"


@pytest.fixture
def run_folder(tmp_path):
    for step in (100, 200, 300):
        write(tmp_path, step)
    return tmp_path


def checkpoint(*arguments, expect=0, stdin=subprocess.DEVNULL):
    done = subprocess.run([harness.BIN / "trainctl", "checkpoint", *map(str, arguments)], stdin=stdin,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == expect, (arguments, done)
    return done


def objects(*arguments, expect=0):
    return harness.events(checkpoint(*arguments, "--json", expect=expect).stdout)


def flip(path, at, bit=0):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def steps(folder):
    return [line["step"] for line in objects("ls", folder) if line["kind"] == "checkpoint"]


def test_ls_shows_each_checkpoint_newest_first(run_folder):
    lines = objects("ls", run_folder)

    assert [line["step"] for line in lines] == [300, 200, 100]
    assert {(line["generation"], line["strategy"], line["world_size"], line["state"]) for line in lines} == \
        {(2, "ddp", 2, "not verified")}
    assert {line["state"] for line in objects("ls", run_folder, "--verify")} == {"verified"}
    text = checkpoint("ls", run_folder).stdout.splitlines()
    assert text[0].split() == ["STEP", "GENERATION", "STRATEGY", "RANKS", "BYTES", "AGE", "STATE"]
    assert [line.split()[0] for line in text[1:]] == ["300", "200", "100"]


def test_ls_shows_what_is_not_a_checkpoint(run_folder):
    (run_folder / "step-00000400.g3.partial").mkdir()
    (run_folder / "metrics.jsonl.tmp-7").write_text("x")

    kinds = [(line["kind"], line["name"]) for line in objects("ls", run_folder)]

    assert kinds[3:] == [("partial", "step-00000400.g3.partial"), ("orphan", "metrics.jsonl.tmp-7")]
    text = checkpoint("ls", run_folder).stdout
    assert "step-00000400.g3.partial: not a checkpoint" in text and "left by a crash" in text


def test_verify_names_every_problem_and_gives_exit_code_1(run_folder):
    shard = run_folder / "step-00000200" / SHARD
    flip(shard, shard.stat().st_size - 1)
    (run_folder / "step-00000100" / SHARD).unlink()

    lines = objects("verify", run_folder, expect=1)

    assert [line.get("state") for line in lines[:3]] == ["verified", "damaged", "damaged"]
    assert {(p["file"], p["tensor"]) for p in lines[1]["problems"]} == {(SHARD, "exp_avg_sq 'ln_f.bias'"), (SHARD, "")}
    assert all(p["expected"].startswith("hash ") and p["found"].startswith("hash ") for p in lines[1]["problems"])
    assert "missing" in lines[2]["problems"][0]["found"]
    done = checkpoint("verify", run_folder, expect=1)
    assert "step-00000300: good" in done.stdout and "step-00000200: DAMAGED, 2 problems" in done.stdout
    assert "2 of 3 checkpoints are damaged" in done.stderr
    checkpoint("verify", run_folder, "--step", 300)
    checkpoint("verify", run_folder / "step-00000300")


def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(run_folder):
    for name in (f"step-00000200/{SHARD}", "step-00000100/manifest.json"):
        (run_folder / name).unlink()
        (run_folder / name).symlink_to(run_folder / name)

    assert [line["state"] for line in objects("ls", run_folder)] == ["not verified", "unreadable", "unreadable"]
    done = checkpoint("verify", run_folder, expect=1)
    assert "step-00000300: good" in done.stdout and done.stdout.count("CANNOT BE READ, and may be good") == 2
    assert "Too many levels of symbolic links" in done.stderr


def test_verify_of_a_copy_under_another_name_works(run_folder):
    copy = run_folder / "best"
    (run_folder / "step-00000100").rename(copy)
    os.utime(copy, (10**9, 10**9))

    verified, = objects("verify", copy)

    assert (verified["state"], verified["modified_s"]) == ("verified", 10**9)
    assert steps(run_folder) == [300, 200]


@pytest.mark.parametrize("arguments", [("verify", "nowhere"), ("ls", "nowhere"), ("show", "."), ("verify", "."),
                                   ("rm", "."),
                                   ("verify", "a-file"), ("verify", ".", "--step", "7")], ids=" ".join)
def test_bad_input_gives_exit_code_2(tmp_path, arguments):
    (tmp_path / "a-file").write_text("x")

    done = checkpoint(arguments[0], tmp_path / arguments[1], *arguments[2:], expect=2)

    assert str(tmp_path) in done.stderr


def test_show_prints_the_contents_of_a_checkpoint(run_folder):
    shown, = objects("show", run_folder, "--tensors")

    assert shown["step"] == 300 and shown["manifest"]["job"] == {"id": "abcdefgh", "name": "small"}
    assert {(t["role"], t["name"]) for t in shown["manifest"]["tensors"]} == {
        (role, name) for role in ("parameter", "exp_avg", "exp_avg_sq") for name in ("wte.weight", "ln_f.bias")}
    text = checkpoint("show", run_folder / "step-00000100").stdout
    assert "2 tensors, 30 elements" in text
    assert shown["manifest"]["files"][0]["hash"] in checkpoint("show", run_folder).stdout


def test_rm_needs_a_confirmation_and_keeps_the_last_good_checkpoint(run_folder):
    done = checkpoint("rm", run_folder, "--step", 100, expect=2)
    assert "--yes" in done.stderr
    assert steps(run_folder) == [300, 200, 100]

    checkpoint("rm", run_folder / "step-00000100", "--yes")
    checkpoint("rm", run_folder, "--step", 300, "--yes")
    assert steps(run_folder) == [200]

    done = checkpoint("rm", run_folder / "step-00000200", "--yes", expect=2)
    assert "last good" in done.stderr and steps(run_folder) == [200]


def test_reshard_refuses_a_folder_in_which_a_job_trains(run_folder):
    out = run_folder / "out"
    out.mkdir()
    with open(out / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = checkpoint("reshard", run_folder, 100, "--ranks", 2, "--out", out, expect=2)
    assert "a job trains into" in refused.stderr
    checkpoint("reshard", run_folder, 100, "--ranks", 2, "--out", out)


def test_rm_refuses_a_checkpoint_that_is_being_read_and_a_folder_in_which_a_job_trains(run_folder):
    with open(run_folder / "step-00000100" / "manifest.json") as manifest:
        fcntl.flock(manifest, fcntl.LOCK_SH)
        assert "being read" in checkpoint("rm", run_folder, "--step", 100, "--yes", expect=2).stderr
    with open(run_folder / ".lock", "w") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert f"process {os.getpid()}" in checkpoint("rm", run_folder, "--step", 100, "--yes", expect=2).stderr
        assert f"in use by process {os.getpid()}" in checkpoint("ls", run_folder).stdout
    assert steps(run_folder) == [300, 200, 100]


def test_rm_with_partials_removes_leftovers_of_crashes(run_folder):
    (run_folder / "step-00000400.g3.partial").mkdir()
    (run_folder / "step-00000400.g3.partial" / SHARD).write_text("half")
    (run_folder / "metrics.jsonl.tmp-7").write_text("x")

    removed, = objects("rm", run_folder, "--partials", "--yes")

    assert removed["names"] == ["step-00000400.g3.partial", "metrics.jsonl.tmp-7"] and removed["bytes"] == 5
    assert [line["kind"] for line in objects("ls", run_folder)] == ["checkpoint"] * 3


def test_rm_with_partials_refuses_a_single_checkpoint(run_folder):
    done = checkpoint("rm", run_folder / "step-00000100", "--partials", "--yes", expect=2)

    assert "not a run folder" in done.stderr
    assert steps(run_folder) == [300, 200, 100]


def test_verify_shows_its_progress_on_a_terminal(run_folder):
    leader, follower = pty.openpty()
    done = subprocess.run([harness.BIN / "trainctl", "checkpoint", "verify", run_folder], stderr=follower,
                          stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm"}, text=True, timeout=60)
    os.close(follower)
    shown = os.read(leader, 65536).decode()
    os.close(leader)

    assert done.returncode == 0
    assert "verify step-00000300 [####################] 100%" in shown, shown


def test_python_safetensors_opens_every_shard(run_folder):
    for folder in run_folder.glob("step-*"):
        manifest = json.loads((folder / "manifest.json").read_text())
        for entry in manifest["files"]:
            with safe_open(folder / entry["name"], framework="numpy") as shard:
                tensors = {name: shard.get_tensor(name) for name in shard.keys()}
            for tensor in manifest["tensors"]:
                is_parameter = tensor["role"] == "parameter"
                name = tensor["name"] if is_parameter else f"optimizer.{tensor['role']}.{tensor['name']}"
                assert list(tensors[name].shape) == tensor["shape"] and tensors[name].dtype == numpy.float32
