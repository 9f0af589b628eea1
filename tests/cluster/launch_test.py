"""`trainctl launch` and jobs with `command`: what the ranks get, how they end, and what remains of them."""

import fcntl
import os
import pty
import shlex
import signal
import socket
import struct
import subprocess
import termios
import textwrap

import harness
import processes
import pytest


def write_script(cluster, text, name="script.py"):
    path = cluster.folder / name
    path.write_text(textwrap.dedent(text))
    return path


def write_command(cluster, *argv, name="command", **keys):
    document = harness.with_keys({"name": name, "command": {"argv": list(argv)}, "resources": {"ranks": 2}}, keys)
    return harness.write_job_file(cluster.folder / f"{name}.yaml", document)


def lines_of(cluster, job_id):
    return cluster.trainctl("logs", job_id, "--all-ranks").stdout.splitlines()


def test_launch_sets_the_environment_prefixes_the_output_and_leaves_nothing(cluster):
    done = cluster.run_trainctl("launch", "--nproc_per_node=2", "--no-python", "sh", "-c",
                                'echo $LOCAL_RANK of $WORLD_SIZE at $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT "$1"; '
                                'test $MASTER_PORT -gt 0; echo problem >&2', "sh", "--lr")

    assert sorted(done.stdout.splitlines()) == [f"[default{rank}]:{rank} of 2 at 127.0.0.1 0 --lr" for rank in (0, 1)]
    assert sorted(done.stderr.splitlines()) == ["[default0]:problem", "[default1]:problem"]
    assert not processes.descendants(), "a process outlived trainctl"
    assert not (cluster.folder / "trainyard-runs").exists()


def test_output_of_one_rank_has_no_prefix_and_is_not_buffered_by_python(cluster):
    script = write_script(cluster, """
        import os, sys
        print("hello", sys.argv[1:])
        os.kill(os.getpid(), 9)
    """)

    done = cluster.run_trainctl("launch", script, "--help", expect=1)

    assert done.stdout == "hello ['--help']\n"
    assert "rank 0 on local was killed by signal 9 (SIGKILL)" in done.stderr


def test_a_progress_bar_is_shown_while_it_runs_and_its_overwritten_texts_are_left_out(cluster):
    go = cluster.folder / "go"
    script = write_script(cluster, f"""
        import os, sys, time
        for done in range(301):
            print(f"\\r{{done}}/300", end="", file=sys.stderr, flush=True)
            while done == 150 and not os.path.exists({str(go)!r}): time.sleep(0.01)
        print("\\ndone", file=sys.stderr)
    """)

    launch = cluster.start_trainctl("launch", script)
    harness.wait_until(lambda: "150/300" in launch.output(), "the bar is shown at its half")
    go.touch()

    assert launch.wait() == 0
    lines = launch.output().splitlines()
    assert sum("/300" in line for line in lines) < 100
    assert lines[lines.index("done") - 1].endswith("300/300")


def test_a_failing_rank_ends_the_others_and_its_traceback_is_shown(cluster):
    script = write_script(cluster, """
        import os, signal, time
        if os.environ["RANK"] == "1":
            raise RuntimeError("no luck")
        time.sleep(600)
    """)

    done = cluster.run_trainctl("launch", "--nproc-per-node", "3", script, expect=1)

    assert "rank 1 on local exited with code 1" in done.stderr
    assert "RuntimeError: no luck" in done.stderr.split("FAILED", 1)[1]
    assert not processes.descendants()


def test_flags_are_read_from_the_variables_of_torchrun(cluster, monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    monkeypatch.setenv("PET_NO_PYTHON", "1")
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "head:29400")
    monkeypatch.setenv("TRAINYARD_COORDINATOR", "127.0.0.1:9")

    done = cluster.run_trainctl("launch", "--standalone", "sh", "-c", "echo $RANK of $WORLD_SIZE")
    one = cluster.run_trainctl("launch", "--standalone", "--nproc-per-node=1", "sh", "-c", "echo $WORLD_SIZE")

    assert sorted(done.stdout.splitlines()) == ["[default0]:0 of 2", "[default1]:1 of 2"]
    assert one.stdout == "1\n"
    assert "--rdzv-endpoint has no effect" in one.stderr
    assert "the coordinator 127.0.0.1:9 is not used" in one.stderr


def test_the_summary_of_a_failure_names_the_folder_of_the_user_and_the_last_attempt(cluster):
    done = cluster.run_trainctl("launch", "--max-restarts=1", "--log-dir=logs", "--no-python", "sh", "-c",
                                'echo "life $TORCHELASTIC_RESTART_COUNT"; exit 3', expect=1)

    summary = done.stderr.split("FAILED", 1)[1]
    (job,) = (cluster.folder / "logs").iterdir()
    assert f"in {job}" in summary
    assert summary.rstrip().endswith("last lines of rank 0:\n  life 1"), summary


def test_failures_restart_all_ranks_up_to_the_limit(cluster):
    script = 'echo "life $TORCHELASTIC_RESTART_COUNT"; test $RANK = 0 || test $TORCHELASTIC_RESTART_COUNT = 2'

    done = cluster.run_trainctl("launch", "--nproc-per-node=2", "--max-restarts=2", "--log-dir=logs", "--no-python",
                                "sh", "-c", script)
    failed = cluster.run_trainctl("launch", "--nproc-per-node=2", "--max-restarts=1", "--no-python", "sh", "-c",
                                  script, expect=1)

    assert [line for line in done.stdout.splitlines() if line.startswith("[default1]")] == [
        f"[default1]:life {life}" for life in (0, 1, 2)]
    assert "the one restart is used up" in failed.stderr
    (job,) = (cluster.folder / "logs").iterdir()
    assert (job / "attempt_2" / "1" / "stdout.log").read_text() == "life 2\n"


def test_a_rank_may_end_early_and_forked_processes_end_with_it(cluster):
    done = cluster.run_trainctl("launch", "--nproc-per-node=2", "--no-python", "sh", "-c",
                                'sleep 600 & test $RANK = 0 || { sleep 0.5; echo late; }')

    assert "[default1]:late" in done.stdout
    assert not processes.descendants()


def test_ctrl_c_sends_sigterm_to_all_processes_and_then_kills(cluster):
    job = write_command(cluster, "sh", "-c", 'trap "echo asked" TERM; echo ready; while true; do sleep 0.1; done',
                        command__grace_s=5)
    run = cluster.start_trainctl("run", job)
    harness.wait_until(lambda: all(f"rank {rank}: ready" in run.output() for rank in (0, 1)), "both ranks run")

    run.signal(signal.SIGINT)

    assert run.wait() == 130
    assert all(f"rank {rank}: asked" in run.output() for rank in (0, 1))
    assert "CANCELLED" in run.output()
    assert "logs" not in run.output().split("CANCELLED")[1], "the message names logs, although the output was removed"
    assert not (cluster.folder / "trainyard-runs").exists(), "a run folder was made for a command"


@pytest.mark.parametrize("on_terminal", ["stdout", "stderr"])
def test_only_the_stream_on_a_terminal_is_made_safe_for_it(cluster, on_terminal):
    main, terminal = pty.openpty()
    path = cluster.folder / "other"
    with path.open("wb") as other:
        subprocess.run([harness.BIN / "trainctl", "launch", "--no-python", "sh", "-c",
                        r"printf 'a\033[2Jb\n'; printf 'a\033[2Jb\n' >&2"], cwd=cluster.folder, check=True, timeout=60,
                       stdin=subprocess.DEVNULL, **{"stdout": other, "stderr": other, on_terminal: terminal})
    shown = os.read(main, 65536)
    os.close(terminal)
    os.close(main)

    assert b"ab" in shown and b"\x1b[2J" not in shown
    assert b"a\x1b[2Jb" in path.read_bytes()


def test_ctrl_c_works_while_the_output_is_stalled(cluster):
    """As in a pager: nothing reads standard output any more. Also, the path in TMPDIR is relative."""
    asked = cluster.folder / "asked"
    temporary = cluster.folder / "tmp"
    temporary.mkdir()
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with (cluster.folder / "stderr").open("wb") as stderr:
        launch = subprocess.Popen(
            [harness.BIN / "trainctl", "launch", "--no-python", "sh", "-c",
             f'trap "touch {asked}; exit 0" TERM; while true; do echo {"x" * 200}; sleep 0.01; done'],
            stdout=writing, stderr=stderr, cwd=cluster.folder, env={**os.environ, "TMPDIR": temporary.name})
    os.close(writing)
    try:
        harness.wait_until(lambda: unread_bytes(reading) > 3800, "the pipe is full")

        launch.send_signal(signal.SIGINT)
        harness.wait_until(asked.exists, "the job is cancelled")
        with open(reading, "rb") as rest:
            rest.read()

        assert launch.wait(60) == 130
        assert "cancelling job" in (cluster.folder / "stderr").read_text()
        assert not list(temporary.iterdir()), "the folder of a cancelled job remained"
    finally:
        launch.kill()
        launch.wait()


def unread_bytes(pipe):
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"0000"))[0]


@pytest.mark.slow
def test_a_job_continues_after_its_terminal_is_closed(cluster):
    temporary = cluster.folder / "tmp"
    temporary.mkdir()
    release = cluster.folder / "release"
    launch = cluster.start("launch", [
        harness.BIN / "trainctl", "launch", "--no-python", "sh", "-c",
        f"echo ready; while ! test -e {release}; do sleep 0.1; done; echo finished"], env={"TMPDIR": str(temporary)})
    harness.wait_until(lambda: "ready" in launch.output(), "the rank runs")

    launch.signal(signal.SIGHUP)

    assert launch.wait() == 0, launch.output()
    (folder,) = temporary.iterdir()
    command = shlex.split((folder / "watch").read_text().splitlines()[0])
    release.touch()
    watched = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    harness.wait_until(lambda: not any(processes.name_of(pid).startswith("trainyard") for pid in
                                       processes.descendants()), "the daemons exit", 60)


@pytest.mark.parametrize("arguments, expected", [
    (("missing.py",), "the script missing.py does not exist"),
    (("--nproc-per-node=2", "--no-python", "no-such-program"), "no folder in PATH"),
    (("--nnodes=2", "--no-python", "true"), "--nnodes 2 needs a cluster"),
    (("--json", "--log-dir=logs", "--no-python", "true"), "have no effect with --json"),
    (("--nproc_per_nod=2", "script.py"), "lists the flags; did you mean --nproc_per_node?"),
    ((), "no program: expected a script"),
])
def test_what_cannot_run_is_refused(cluster, arguments, expected):
    done = cluster.run_trainctl("launch", *arguments, expect=None)

    assert done.returncode in (1, 2)
    assert expected in done.stderr


def test_json_has_the_output_and_the_end(cluster):
    done = cluster.run_trainctl("launch", "--json", "--no-python", "echo", "hello")

    lines = harness.events(done.stdout)
    assert [(line["rank"], line["stream"], line["text"]) for line in lines if line["event"] == "output"] == [
        (0, "stdout", "hello")]
    assert (lines[-1]["event"], lines[-1]["state"]) == ("done", "SUCCEEDED")


def test_a_job_spans_hosts_with_one_address_of_rank_zero(cluster):
    cluster.start_coordinator()
    for name in ("w1", "w2"):
        cluster.start_worker(name, 2)
    job = cluster.submit_file(write_command(
        cluster, "sh", "-c",
        "echo group $GROUP_RANK of $GROUP_WORLD_SIZE local $LOCAL_RANK at $MASTER_ADDR:$MASTER_PORT",
        resources__ranks=4))

    assert cluster.wait_for_end(job).state_name == "SUCCEEDED"

    lines = lines_of(cluster, job)
    assert len(lines) == 4
    assert len({line.split(" at ")[1] for line in lines}) == 1
    assert sorted(line.split(": ")[1].split(" at ")[0] for line in lines) == sorted(
        f"group {group} of 2 local {local}" for group in (0, 1) for local in (0, 1))


def test_launch_puts_exactly_nproc_per_node_ranks_on_each_host(cluster):
    cluster.start_coordinator()
    for name in ("w1", "w2"):
        cluster.start_worker(name, 4)

    launched = cluster.run_trainctl("launch", "--coordinator", cluster.coordinator.address, "--nnodes=2",
                                    "--nproc-per-node=2", "--tee=0:1", "--redirects=3", "--no-python", "sh", "-c",
                                    "echo $RANK of $WORLD_SIZE local $LOCAL_RANK of $LOCAL_WORLD_SIZE on $GROUP_RANK")

    assert sorted(launched.stdout.splitlines()) == ["[default0]:0 of 4 local 0 of 2 on 0",
                                                    "[default2]:2 of 4 local 0 of 2 on 1"]


def test_an_elastic_script_continues_with_fewer_ranks_and_grows_again(cluster):
    cluster.start_coordinator()
    workers = {name: cluster.start_worker(name, 1) for name in ("w1", "w2")}
    script = write_script(cluster, """
        import os, pathlib, time
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        saved = pathlib.Path("saved")
        step = len(saved.read_text().split()) if saved.exists() else 0
        while step < 10_000 and not pathlib.Path("release").exists():
            if rank == 0:
                with saved.open("a") as file:
                    file.write(f"{world}\\n")
            step += 1
            time.sleep(0.05)
    """)
    job = cluster.submit_file(write_command(cluster, "python3", str(script), command__min_ranks=1,
                                                     command__ranks_per_host=1, command__grow_after_s=1))
    saved = cluster.folder / "saved"

    def worlds():
        return saved.read_text().split() if saved.exists() else []
    harness.wait_until(lambda: "2" in worlds(), "two ranks run")

    # The daemon and its rank are killed together, as if their host lost power.
    pid = harness.wait_until(lambda: cluster.get(job).pid_of(1), "rank 1 has reported its pid")
    workers["w2"].signal(signal.SIGKILL)
    workers["w2"].wait()
    os.kill(pid, signal.SIGKILL)
    cluster.trainctl("drain", "w2", "--lost")
    harness.wait_until(lambda: worlds()[-1] == "1", "one rank continues", 60)
    assert cluster.get(job).job.restarts == 1

    cluster.start_worker("w3", 1)
    harness.wait_until(lambda: worlds()[-1] == "2", "the script grows", 60)
    assert cluster.get(job).job.restarts == 1
    assert "grows from 1 to 2 ranks" in cluster.trainctl("why", job).stdout
    (cluster.folder / "release").touch()

    assert cluster.wait_for_end(job).state_name == "SUCCEEDED"


def test_ranks_that_need_several_hosts_are_refused_without_a_coordinator(cluster):
    done = cluster.run_trainctl("run", write_command(cluster, "true", resources__ranks=4, command__ranks_per_host=2),
                                expect=None)

    assert done.returncode in (1, 2), done
    assert "4 ranks need 2 hosts, but without --coordinator" in done.stderr, done.stderr


def test_a_restart_chooses_another_port_if_a_program_has_taken_the_first_one(cluster):
    script = write_script(cluster, """
        import os, pathlib, socket, time
        port = int(os.environ["MASTER_PORT"])
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            pathlib.Path("chosen.tmp").write_text(str(port))
            os.rename("chosen.tmp", "chosen")
            while not pathlib.Path("taken").exists():
                time.sleep(0.05)
        with socket.create_server(("", port)):
            print("listens", port != int(pathlib.Path("chosen").read_text()))
    """)
    launch = cluster.start("launch", [harness.BIN / "trainctl", "launch", "--max-restarts=1", script])
    harness.wait_until(lambda: (cluster.folder / "chosen").exists(), "rank 0 has its port")

    with socket.create_server(("", int((cluster.folder / "chosen").read_text()))):
        (cluster.folder / "taken").touch()
        assert launch.wait(60) == 0, launch.output()

    assert "Address already in use" in launch.output()
    assert "listens True" in launch.output()


def test_limits_of_time_and_memory_end_a_command_and_are_named(cluster):
    cluster.start_coordinator()
    cluster.start_worker("w1", 1)
    module = cluster.folder / "never_imported.py"
    module.write_text("import threading\nthreading.Event().wait()\n")
    slow = cluster.submit_file(write_command(cluster, "python3", "-c", "import never_imported", resources__ranks=1,
                                                      command__time_limit_s=0.5))
    assert (view := cluster.wait_for_end(slow)).state_name == "FAILED"
    assert view.job.reason == "the time limit of 0.5 s is used up (command.time_limit_s)"

    large = cluster.submit_file(write_command(
        cluster, "python3", "-c", "import time; data = bytearray(200_000_000); time.sleep(100)", resources__ranks=1,
        recovery__max_restarts=0, command__memory_bytes=100_000_000))
    assert (view := cluster.wait_for_end(large)).state_name == "FAILED"
    assert "more than command.memory_bytes (100000000)" in view.job.reason


def test_a_command_survives_its_daemons_and_restarts_when_a_rank_is_killed(cluster):
    cluster.start_coordinator()
    worker = cluster.start_worker("w1", 2)
    release = cluster.folder / "release"
    job = cluster.submit_file(write_command(
        cluster, "sh", "-c", f"echo start; while ! test -e {release}; do sleep 0.1; done; exit 0"))
    pids = [cluster.wait_for_state(job, "RUNNING").pid_of(rank) for rank in (0, 1)]
    coordinator = cluster.coordinator
    for program in (worker, coordinator):
        program.signal(signal.SIGKILL)
        program.wait()
    cluster.start_coordinator(port=int(coordinator.address.split(":")[1]))
    cluster.start("worker-w1", [harness.BIN / "trainyard-worker", "--coordinator", cluster.coordinator.address,
                                "--slots", 2, "--name", "w1", "--state", cluster.folder / "worker-w1"])
    view = cluster.wait_for_state(job, "RUNNING")
    assert [view.pid_of(rank) for rank in (0, 1)] == pids

    os.kill(pids[1], signal.SIGKILL)
    harness.wait_until(lambda: cluster.get(job).job.restarts == 1, "the job restarts")
    release.touch()

    assert cluster.wait_for_end(job).state_name == "SUCCEEDED"


def test_a_host_whose_check_fails_is_not_used_and_uses_no_restart(cluster):
    cluster.start_coordinator()
    for host in ("h1", "h2"):
        cluster.start_worker(host, 2, prefix=["env", f"WHO={host}"])
    check = 'echo "checking $RANK"; test "$WHO" = h2 || { echo no driver; exit 3; }'
    job = cluster.submit_file(write_command(cluster, "sh", "-c", "echo on $WHO", recovery__max_restarts=0,
                                                     command__check={"argv": ["sh", "-c", check]}))

    view = cluster.wait_for_end(job)

    assert view.state_name == "SUCCEEDED", view.job.reason
    lines = lines_of(cluster, job)
    assert len(lines) == 2 and all(line.endswith("on h2") for line in lines), lines
    assert view.job.restarts == 0
    why = cluster.trainctl("why", job).stdout
    assert "the check of this host (command.check) exited with code 3: no driver" in why
    assert not list((cluster.folder / "worker-h1" / "ranks").glob("*.r4294967295"))  # the rank of a check: kCheckRank


def test_a_job_fails_when_the_check_of_every_host_fails_or_does_not_end(cluster):
    cluster.start_coordinator()
    cluster.start_worker("h1", 2)
    check = {"argv": ["sleep", "600"], "time_limit_s": 0.2}
    job = cluster.submit_file(write_command(cluster, "true", command__check=check))

    view = cluster.wait_for_end(job)

    assert view.state_name == "FAILED"
    assert "did not end within its time limit" in view.job.reason and "no other host" in view.job.reason
    assert "sleep" not in {processes.name_of(pid) for pid in processes.descendants()}


def test_ranks_with_cpus_run_on_cpus_of_their_own(cluster):
    available = sorted(os.sched_getaffinity(0))
    script = write_script(cluster, """
        import os
        print(os.environ["OMP_NUM_THREADS"], *sorted(os.sched_getaffinity(0)))
    """)
    path = write_command(cluster, "python3", str(script), command__cpus=1, resources__ranks=2)
    if len(available) < 2:
        pytest.skip("needs two CPUs")

    done = cluster.run_trainctl("run", path)
    refused = cluster.run_trainctl("run", write_command(cluster, "true", command__cpus=len(available)), expect=None)

    shown = {line.rpartition(": ")[2] for line in done.stdout.splitlines() if line.startswith(("rank 0:", "rank 1:"))}
    assert len(shown) == 2 and all(line.startswith("1 ") and line.count(" ") == 1 for line in shown), done.stdout
    assert refused.returncode != 0 and "CPUs, but this machine has" in refused.stderr
