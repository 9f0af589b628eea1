"""The systemd units as systemd-analyze sees them, and the Slurm script with stand-ins for Slurm's commands that run the
daemons on this host."""

import os
import re
import subprocess

import pytest

import harness
import manifests

SYSTEMD = manifests.DEPLOY / "systemd"
SBATCH = manifests.DEPLOY / "slurm" / "trainyard.sbatch"


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, **options)


# The highest exposure that systemd-analyze may find, times ten. Trainers inherit the settings of the worker and need
# devices and writable code.
@pytest.mark.parametrize("unit, exposure", [("coordinator", 20), ("worker", 30)])
def test_units_are_valid_and_hardened(tmp_path, unit, exposure):
    name = f"trainyard-{unit}.service"
    text = (SYSTEMD / name).read_text()
    # The programs are not installed on this machine.
    (tmp_path / name).write_text(text.replace("/opt/trainyard/bin", str(harness.BIN)))

    verified = run("systemd-analyze", "verify", "--man=no", tmp_path / name)
    rated = run("systemd-analyze", "security", "--offline=true", f"--threshold={exposure}", "--no-pager",
                tmp_path / name)

    assert verified.returncode == 0 and not verified.stderr, verified.stderr
    assert rated.returncode == 0, rated.stdout[-300:]
    (tmp_path / name).write_text(text.replace("\nUser=", "\nUsr="))
    assert "Usr" in run("systemd-analyze", "verify", "--man=no", tmp_path / name).stderr


def test_stopping_the_worker_unit_leaves_its_trainers_alone():
    text = (SYSTEMD / "trainyard-worker.service").read_text()

    assert "\nKillMode=process\n" in text and "--stop-trainers" not in text and "PrivateTmp" not in text


def test_a_system_call_that_a_unit_forbids_is_an_error_and_kills_no_trainer():
    for path in SYSTEMD.glob("*.service"):
        text = path.read_text()
        assert "\nSystemCallFilter=@system-service\n" in text and "\nSystemCallErrorNumber=EPERM\n" in text, path


def test_the_worker_waits_until_the_file_system_with_the_run_folders_is_mounted():
    unit, service = (SYSTEMD / "trainyard-worker.service").read_text().split("\n[Service]\n")

    assert "\nRequiresMountsFor=/srv/trainyard\n" in unit and "ReadWritePaths=-/srv/trainyard " in service


def test_units_are_restarted_without_a_limit():
    for path in SYSTEMD.glob("*.service"):
        unit, service = path.read_text().split("\n[Service]\n")
        assert "\nStartLimitIntervalSec=0\n" in unit and "\nRestart=always\n" in service, path


def test_user_and_folders_of_the_units_are_declared():
    user = re.search(r"^u (\w+) ", (SYSTEMD / "trainyard.sysusers").read_text(), re.M)[1]
    for path in SYSTEMD.glob("*.service"):
        assert f"\nUser={user}\n" in path.read_text()
    users = run("systemd-sysusers", "--dry-run", SYSTEMD / "trainyard.sysusers")
    folders = (SYSTEMD / "trainyard.tmpfiles").read_text()
    assert users.returncode == 0, users.stderr
    assert re.findall(r"^d (\S+)", folders, re.M) == ["/etc/trainyard", "/srv/trainyard"]


def test_a_folder_for_runs_that_exists_keeps_its_owner_and_mode(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("trainyard:x:64999:64999::/:/bin/sh\n")
    (tmp_path / "etc" / "group").write_text("trainyard:x:64999:\n")
    runs = tmp_path / "srv" / "trainyard"
    runs.mkdir(parents=True)
    runs.chmod(0o775)
    before = runs.stat()

    done = run("systemd-tmpfiles", "--create", f"--root={tmp_path}", "--prefix=/srv", SYSTEMD / "trainyard.tmpfiles")

    after = runs.stat()
    assert done.returncode == 0, done.stderr
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


@pytest.fixture
def slurm(cluster):
    """A folder with scontrol and srun for one node, and the environment of a batch script."""
    folder = cluster.folder / "slurm"
    folder.mkdir()
    (folder / "scontrol").write_text('#!/bin/sh\n[ "$1 $2" = "show hostnames" ] && echo 127.0.0.1\n')
    (folder / "srun").write_text('#!/bin/sh\n[ "$1" = --ntasks-per-node=1 ] || exit 3\nshift\nexec "$@"\n')
    for program in folder.iterdir():
        program.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n1",
           "TRAINYARD_BIN": str(harness.BIN), "TRAINYARD_SHARED": str(cluster.folder / "shared"),
           "TRAINYARD_PORT": str(harness.free_port()), "TRAINYARD_SLOTS": "2", "TMPDIR": str(cluster.folder)}
    return cluster, env


@pytest.mark.parametrize("steps, code", [(5, 0), (0, 2)])
def test_the_slurm_script_runs_a_job_and_ends_everything(slurm, steps, code):
    cluster, env = slurm
    job = cluster.write_job()

    done = run("bash", SBATCH, job, "--set", f"train.steps={steps}", env=env, cwd=cluster.folder)

    assert done.returncode == code, done.stdout + done.stderr
    assert ("SUCCEEDED" in done.stdout + done.stderr) == (code == 0), done.stdout + done.stderr
    for private in ("shared", f"trainyard-{os.getuid()}-4711"):
        assert oct((cluster.folder / private).stat().st_mode)[-3:] == "700", private
    harness.assert_nothing_runs()


def test_the_slurm_script_continues_its_job_after_a_requeue(slurm):
    cluster, env = slurm
    command = ["bash", SBATCH, cluster.write_job(), "--set", "train.steps=5"]

    first = run(*command, env=env, cwd=cluster.folder)
    again = run(*command, env={**env, "SLURM_RESTART_COUNT": "1"}, cwd=cluster.folder)

    assert first.returncode == 0, first.stdout + first.stderr
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(list((cluster.folder / "trainyard-runs").iterdir())) == 1, "the job was submitted twice"
    harness.assert_nothing_runs()


def test_the_slurm_script_ends_when_the_daemons_do_not_start(slurm):
    cluster, env = slurm
    (cluster.folder / "slurm" / "srun").write_text("#!/bin/sh\nexit 7\n")

    done = run("bash", SBATCH, cluster.write_job(), env=env, cwd=cluster.folder)

    assert done.returncode == 1
    assert "srun exited with 7" in done.stderr
    harness.assert_nothing_runs()


@pytest.mark.parametrize("kind", ["link", "file", "of_another_user"])
def test_the_slurm_script_refuses_a_state_folder_that_another_user_may_have_made(slurm, kind):
    cluster, env = slurm
    state = cluster.folder / f"trainyard-{os.getuid()}-4711"
    other = cluster.folder / "other"
    other.mkdir()
    if kind == "link":
        state.symlink_to(other)
    elif kind == "file":
        state.touch()
    else:
        state.mkdir()
        try:
            os.chown(state, 65534, -1)
        except PermissionError:
            pytest.skip("only root can make a folder of another user")

    done = run("bash", SBATCH, cluster.write_job(), env=env, cwd=cluster.folder)

    assert done.returncode == 1 and "is not a folder of this user" in done.stderr, done.stderr
    assert not list(other.iterdir())
    harness.assert_nothing_runs()


def test_the_slurm_script_accepts_many_nodes_and_passes_on_the_number_of_cpus(slurm):
    cluster, env = slurm
    (cluster.folder / "slurm" / "scontrol").write_text("#!/bin/sh\necho 127.0.0.1\nseq 100000\n")
    (cluster.folder / "slurm" / "srun").write_text('#!/bin/sh\necho "$SRUN_CPUS_PER_TASK" >cpus\nexit 7\n')

    done = run("bash", SBATCH, cluster.write_job(), env={**env, "SLURM_CPUS_PER_TASK": "4"}, cwd=cluster.folder)

    assert done.returncode == 1 and "srun exited with 7" in done.stderr, done.stderr
    assert (cluster.folder / "cpus").read_text() == "4\n"


def test_the_slurm_script_does_not_wait_for_a_coordinator_that_no_host_can_reach(slurm):
    cluster, env = slurm
    (cluster.folder / "slurm" / "scontrol").write_text("#!/bin/sh\necho no-such-host.invalid\n")

    # Bash counts the seconds of the script from this number, so the 120 seconds of the script are over at once.
    done = run("bash", SBATCH, cluster.write_job(), env={**env, "SECONDS": "120"}, cwd=cluster.folder)

    assert done.returncode == 1 and "no coordinator answers at no-such-host.invalid" in done.stderr, done.stderr
    harness.assert_nothing_runs()


def test_the_slurm_script_refuses_wrong_usage(slurm):
    _, env = slurm
    del env["SLURM_JOB_ID"]

    assert run("bash", SBATCH, env=env).returncode == 2
    assert "sbatch" in run("bash", SBATCH, SBATCH, env=env).stderr
