"""trainctl metrics: exports of run folders and jobs. The real tensorboard reads the event files."""

import csv
import io
import json
import math
import os
import pty
import subprocess

import harness
from tensorboard.backend.event_processing import event_accumulator

TRAINCTL = harness.BIN / "trainctl"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_COORD")}


def metrics(*arguments, **options):
    return subprocess.run([TRAINCTL, "metrics", *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env=ENVIRONMENT, **options)


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def scalars(folder):
    """{tag: {step: value}} of all event files in a folder, as TensorBoard reads them."""
    accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.SCALARS: 0})
    accumulator.Reload()
    return {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}


def write_run(folder, lines):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return folder


def step(number, loss, **values):
    return {"event": "step", "step": number, "loss": loss, "tokens": 64, "step_s": 0.5, **values}


def test_a_run_and_its_job_export_the_same_losses(cluster, tmp_path):
    cluster.start_coordinator()
    cluster.start_worker("h1")
    job = cluster.submit(train__steps=12, train__evaluate={"every_steps": 5, "batches": 2})
    run = cluster.wait_for_end(job).job.spec.checkpoint.dir
    losses = harness.metrics_steps(run)
    coordinator = ("--coordinator", cluster.coordinator.address)

    from_folder = metrics(run, "--csv")
    from_job = metrics(job, *coordinator, "--csv")
    os.rename(run, run + ".away")
    from_reports = metrics(job, *coordinator, "--csv")

    for done in (from_folder, from_job, from_reports):
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert {int(row["step"]): float(row["loss"]) for row in rows(done.stdout) if row["event"] == "step"} == losses
        assert [row["step"] for row in rows(done.stdout) if row["event"] == "eval"] == ["5", "10", "12"]
    assert from_job.stdout == from_folder.stdout


def test_tensorboard_reads_the_event_file(tmp_path):
    lines = [step(number, 10 / number, lr=1e-3) for number in range(1, 51)]
    lines[29]["loss"] = None
    run = write_run(tmp_path / "some-run", [*lines[:40], {"event": "eval", "step": 40, "loss": 0.5, "seconds": 1},
                                            *lines[40:]])

    done = metrics(run, "--tensorboard", tmp_path / "logs")
    first = scalars(tmp_path / "logs" / "some-run")
    again = metrics(run, "--tensorboard", tmp_path / "logs")

    assert done.returncode == 0, done.stderr
    assert "computed from its creation time" in done.stderr and "was replaced" in again.stderr
    losses = {event.step: event.value for event in first["train/loss"]}
    assert list(losses) == list(range(1, 51)) and math.isnan(losses[30])
    assert all(math.isclose(losses[n], 10 / n, rel_tol=1e-6) for n in losses if n != 30)
    assert {event.step: event.value for event in first["eval/loss"]} == {40: 0.5}
    assert set(first) == {"train/loss", "train/tokens", "train/step_s", "train/lr", "eval/loss", "eval/seconds"}
    times = [event.wall_time for event in first["train/loss"]]
    assert times[1] - times[0] == 0.5 and times == sorted(times)
    assert scalars(tmp_path / "logs" / "some-run")["train/loss"][10:20] == first["train/loss"][10:20]


def test_runs_of_different_folders_with_the_same_name_do_not_replace_each_other(tmp_path):
    first = write_run(tmp_path / "a" / "run", [step(1, 3.0)])
    second = write_run(tmp_path / "b" / "run", [step(1, 5.0)])
    logs = tmp_path / "logs"
    assert metrics(first, "--tensorboard", logs).returncode == 0

    refused = metrics(second, "--tensorboard", logs)

    assert refused.returncode != 0
    assert "another run with the same name" in refused.stderr and str(tmp_path / "a" / "run") in refused.stderr
    assert scalars(logs / "run")["train/loss"][0].value == 3.0


def test_json_has_the_lines_of_the_later_generation_and_a_notice(tmp_path):
    run = write_run(tmp_path / "run", [step(1, 3.0), step(2, 2.0), step(3, 9.0), step(3, 1.0, extra="kept")])

    done = metrics(run, "--json")

    lines = harness.events(done.stdout)
    assert [line["loss"] for line in lines if line["event"] == "step"] == [3.0, 2.0, 1.0]
    assert lines[2]["extra"] == "kept"
    assert "repeated after a restart" in lines[-1]["text"] and lines[-1]["event"] == "notice"


def test_the_plot_is_ascii_without_colour_unless_the_locale_is_unicode(tmp_path):
    run = write_run(tmp_path / "run", [step(number, 10 / number) for number in range(1, 100)] + [step(100, None)])

    plain = subprocess.run([TRAINCTL, "metrics", run], capture_output=True, text=True, timeout=60,
                           env={**ENVIRONMENT, "LC_ALL": "C"})
    master, slave = pty.openpty()
    with subprocess.Popen([TRAINCTL, "metrics", run, "--plot"], stdout=slave, stderr=subprocess.PIPE,
                          env={**ENVIRONMENT, "LC_ALL": "C.UTF-8", "COLUMNS": "50", "TERM": "xterm"}) as wide:
        wide.wait(60)
    os.close(slave)
    shown = os.read(master, 1 << 16).decode()
    os.close(master)

    assert plain.returncode == 0 and plain.stdout.isascii() and "\x1b" not in plain.stdout and "*" in plain.stdout
    assert "not finite  1 loss" in plain.stdout and "lowest" in plain.stdout
    # The plot consists of braille patterns. The first one, U+2800, looks like a space.
    assert "⠀" <= max(shown) and max(len(line) for line in shown.splitlines()[:17]) <= 50


def test_a_million_steps_need_little_memory_and_a_closed_pipe_ends_the_export(tmp_path):
    run = tmp_path / "long"
    run.mkdir()
    with (run / "metrics.jsonl").open("w") as file:
        for first in range(1, 1_000_001, 10_000):
            file.write("".join(f'{{"event":"step","step":{n},"loss":2.5,"step_s":0.01}}\n'
                               for n in range(first, first + 10_000)))

    limited = subprocess.run(["bash", "-c", f"ulimit -v 1000000; {TRAINCTL} metrics {run} --csv | tail -n 1"],
                             capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    closed = subprocess.run(["bash", "-c", f"{TRAINCTL} metrics {run} --csv | head -n 1; echo ${{PIPESTATUS[0]}}"],
                            capture_output=True, text=True, timeout=120, env=ENVIRONMENT)

    assert limited.stdout.startswith("step,1000000,2.5"), limited.stderr
    assert closed.stdout.splitlines()[1] == "1" and "standard output cannot be written" in closed.stderr


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "fifo")
    nothing = write_run(tmp_path / "nothing", [])

    for target, text in ((tmp_path / "empty", "has no metrics.jsonl"), (tmp_path / "fifo", "FIFO"),
                         (nothing, "no steps"), ("no-such-job", "--coordinator"), (tmp_path / "missing", "missing")):
        done = metrics(target, "--csv")
        assert done.returncode == 2 and text in done.stderr, done.stderr
    both = metrics(nothing, "--csv", "--plot")
    assert both.returncode == 2
