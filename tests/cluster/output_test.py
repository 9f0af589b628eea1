"""Output of trainctl: to a full disk, a closed pipe, a narrow terminal; and shell completion."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import harness

ESCAPE_SEQUENCES = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
TRAINCTL = str(harness.BIN / "trainctl")


def run_with_full_output(cluster, *arguments):
    """Runs trainctl with a standard output on which every write fails."""
    prefix = ["--coordinator", cluster.coordinator.address] if cluster.coordinator else []
    command = [TRAINCTL, *prefix, *map(str, arguments)]
    with open("/dev/full", "w") as full:
        popen = subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=cluster.folder,
                                 stdin=subprocess.DEVNULL)
        err = popen.communicate(timeout=60)[1]
    return subprocess.CompletedProcess(command, popen.returncode, "", err)


def on_terminal(cluster, columns, *arguments, env=None):
    """What trainctl writes to a terminal with this number of columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(env or {})}
    environment.pop("COLUMNS", None)
    popen = subprocess.Popen([TRAINCTL, *map(str, arguments)], stdout=follower, stderr=subprocess.DEVNULL,
                             env=environment, cwd=cluster.folder, stdin=subprocess.DEVNULL)
    os.close(follower)
    written = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the last writer has closed the terminal
            break
        if not piece:
            break
        written += piece
    os.close(leader)
    assert popen.wait(60) == 0, written.decode(errors="replace")
    return written


def widths(written):
    """The widths of all lines written to the terminal, including those that were overwritten."""
    return [len(ESCAPE_SEQUENCES.sub(b"", line).decode()) for line in re.split(rb"[\r\n]+", written)]


def test_a_verb_with_unwritable_output_fails_with_a_message(one_host):
    run = one_host.folder / "run"
    file = one_host.write_job(train__steps=4)
    job = one_host.submit(run_folder=run, train__steps=4)
    assert one_host.wait_for_end(job).state_name == "SUCCEEDED"
    verbs = [["--help"], ["help", "run"], ["completion", "bash"], ["version"], ["validate", file], ["list"],
             ["list", "--json"],
             ["status", job], ["watch", job], ["watch", job, "--json"], ["logs", job], ["why", job], ["events"],
             ["events", "--job", job, "--json"], ["goodput", job], ["cluster"], ["doctor", "--no-probes"],
             ["cancel", job],
             ["checkpoint", "ls", run], ["checkpoint", "show", run], ["checkpoint", "verify", run],
             ["checkpoint", "ls", job],
             ["checkpoint", "export", run, one_host.folder / "out"], ["sample", run, "--tokens", "3"], ["submit", file]]

    for verb in verbs:
        done = run_with_full_output(one_host, *verb)
        assert done.returncode == 1, f"{verb}: {done.returncode}, {done.stderr}"
        assert "cannot be written: No space left on device" in done.stderr, f"{verb}: {done.stderr}"
        assert done.stderr.count("cannot be written") == 1, f"{verb}: {done.stderr}"

    assert " was submitted" in done.stderr, "otherwise the user would not know the job's id"


def test_watch_ends_when_its_output_fails_and_the_job_continues(one_host):
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 3)

    done = run_with_full_output(one_host, "watch", job)

    assert done.returncode == 1 and f"watch {job}" in done.stderr, done.stderr
    assert one_host.get(job).state_name == "RUNNING"
    one_host.trainctl("cancel", job)
    one_host.wait_for_state(job, "CANCELLED")


def test_a_run_with_unwritable_output_trains_to_its_end_and_fails(cluster):
    run = cluster.folder / "run"
    job = cluster.write_job(train__steps=30, checkpoint__dir=str(run))

    done = run_with_full_output(cluster, "run", job, "--json")

    assert done.returncode == 1, done.stderr
    assert "cannot be written" in done.stderr and " watch " in done.stderr, done.stderr
    assert sorted(harness.metrics_steps(run)) == list(range(1, 31))
    assert (run / "step-00000030" / "manifest.json").is_file()
    harness.assert_nothing_runs(5)


def test_a_run_with_a_closed_pipe_trains_to_its_end_and_fails(cluster):
    run = cluster.folder / "run"
    job = cluster.write_job(train__steps=30, checkpoint__dir=str(run))

    popen = subprocess.Popen(["bash", "-c", '"$0" run "$1" --json | head -n 1; exit ${PIPESTATUS[0]}', TRAINCTL,
                              str(job)],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cluster.folder)
    out, err = popen.communicate(timeout=60)

    assert popen.returncode == 1, err
    assert len(out.splitlines()) == 1 and "cannot be written: Broken pipe" in err, err
    assert sorted(harness.metrics_steps(run)) == list(range(1, 31))


def test_tables_and_the_live_line_fit_sixty_columns(one_host):
    job = one_host.submit(train__steps=10)
    assert one_host.wait_for_end(job).state_name == "SUCCEEDED"
    address = ["--coordinator", one_host.coordinator.address]

    for verb in (["list"], ["status", job], ["cluster"], ["goodput", job], ["checkpoint", "ls", job]):
        written = on_terminal(one_host, 60, *address, *verb)
        assert max(widths(written)) <= 60, written.decode()
    wide = one_host.trainctl("status", job).stdout
    assert any(len(line) > 60 for line in wide.splitlines()), "output to a pipe must not be wrapped"
    live = on_terminal(one_host, 60, "run", one_host.write_job(train__steps=300))
    assert b" %" in live and "█".encode() in live and b"ETA" in live
    steps = [width for line, width in zip(re.split(rb"[\r\n]+", live), widths(live)) if b"step " in line
             and b"/300" in line]
    assert steps and max(steps) < 60


def test_colours_are_used_only_on_terminals_that_support_them(cluster):
    job = cluster.write_job(train__steps=40)

    assert b"\x1b[32m" in on_terminal(cluster, 80, "run", job)
    without = on_terminal(cluster, 80, "run", job, env={"NO_COLOR": "1"})
    assert b"\x1b[32m" not in without and b"\x1b[K" in without
    assert b"\x1b" not in on_terminal(cluster, 80, "run", job, env={"TERM": "dumb"})


def test_bash_completes_verbs_options_and_files(cluster):
    script = cluster.folder / "completion.bash"
    script.write_text(cluster.run_trainctl("completion", "bash").stdout)

    def completions(*words):
        quoted = " ".join(f"'{word}'" for word in words)
        program = (f"source {script}; COMP_WORDS=(trainctl {quoted}); COMP_CWORD={len(words)}; _trainctl; "
                   'echo "${COMPREPLY[@]}"')
        return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert completions("va") == ["validate"]
    assert completions("checkpoint", "ver") == ["verify"]
    assert completions("--coordinator", "h:1", "run", "--resu") == ["--resume"]
    assert completions("ps", "--li") == ["--limit"]
    assert completions("run", "job") == [], "the shell itself completes files"


def test_verbs_of_other_programs_work_or_suggest_the_right_verb(one_host):
    job = one_host.submit(train__steps=2, name="the-only-one")
    assert one_host.wait_for_end(job).state_name == "SUCCEEDED"

    for verb in ("ps", "ls", "jobs"):
        assert job in one_host.trainctl(verb).stdout
    assert harness.events(one_host.trainctl("ps", "-o", "json").stdout)[0]["id"] == job
    assert "SUCCEEDED" in one_host.trainctl("describe", job).stdout
    assert one_host.run_trainctl("-V").stdout == one_host.run_trainctl("--version").stdout
    assert "checkpoint.dir" in one_host.trainctl("help", "checkpoint", "verify").stdout
    for verb in ("get", "delete", "kill", "top"):
        assert "`trainctl " in one_host.trainctl(verb, job, expect=2).stderr
    assert "unexpected arguments: -x yaml" in one_host.trainctl("list", "-x", "yaml", expect=2).stderr
    assert "expected json" in one_host.trainctl("list", "-o", "yaml", expect=2).stderr


def test_a_job_is_found_by_a_prefix_of_its_id_and_by_its_name(one_host):
    job = one_host.submit(train__steps=2, name="the-only-one")
    others = [one_host.submit(train__steps=2, name="one-of-two") for _ in range(2)]
    for each in (job, *others):
        assert one_host.wait_for_end(each).state_name == "SUCCEEDED"

    for verb in (["status"], ["watch"], ["logs"], ["why"], ["goodput"], ["cancel"], ["checkpoint", "ls"],
                 ["events", "--job"]):
        assert one_host.trainctl(*verb, "the-only-one").stdout, verb
    assert job in one_host.trainctl("status", job[:7]).stdout
    refused = one_host.trainctl("cancel", "one-of-two", expect=2).stderr
    assert "matches 2 jobs" in refused and all(other in refused for other in others), refused
    assert "good" in one_host.trainctl("checkpoint", "verify", "the-only-one").stdout
    assert one_host.trainctl("sample", "the-only-one", "--tokens", "3").stdout


def test_list_shows_all_jobs_or_reports_that_some_are_not_listed(one_host):
    jobs = [one_host.submit(resources__ranks=64) for _ in range(3)]

    assert all(job in one_host.trainctl("list").stdout for job in jobs)
    limited = one_host.trainctl("list", "--limit", "2")
    assert "there are more" in limited.stderr and jobs[0] not in limited.stdout


def test_resume_from_a_mistyped_folder_is_refused_unless_a_fresh_start_is_allowed(cluster):
    cluster.run_trainctl("run", cluster.write_job(train__steps=4, checkpoint__dir=str(cluster.folder / "tour")))
    job = cluster.write_job(train__steps=6, checkpoint__dir=str(cluster.folder / "tuor"))

    refused = cluster.run_trainctl("run", job, "--resume", expect=2)
    fresh = cluster.run_trainctl("run", job, "--resume", "--allow-fresh-start", "--json")

    assert f"did you mean {cluster.folder / 'tour'}?" in refused.stderr, refused.stderr
    assert not (refused.stdout or harness.trainers())
    assert sorted(harness.steps_of(harness.events(fresh.stdout))) == list(range(1, 7))
