"""The logs of daemons: a file with rotation, SIGHUP, and the journal of systemd."""

import os
import signal
import subprocess

import harness


def test_sighup_reopens_the_file_and_reads_the_level_again(cluster):
    log, config = cluster.folder / "c.log", cluster.folder / "c.yaml"
    config.write_text(f"log: {{file: {log}, level: warning}}\n")
    cluster.start_coordinator("--config", config)
    assert log.exists() and " I coordinator" not in log.read_text()

    config.write_text(f"log: {{file: {log}, level: info}}\n")
    log.rename(cluster.folder / "old.log")
    cluster.coordinator.signal(signal.SIGHUP)
    harness.wait_until(lambda: log.exists() and "SIGHUP: the level of the log is info" in log.read_text(),
                       "the file is opened again")
    worker = cluster.start_worker("h1")
    harness.wait_until(lambda: "host h1 attached" in log.read_text(), "events are logged")

    config.write_text("log: {levle: debug}\n")
    cluster.coordinator.signal(signal.SIGHUP)
    harness.wait_until(lambda: "the level of the log is unchanged" in log.read_text() and "levle" in log.read_text(),
                       "the problem is logged")
    worker.signal(signal.SIGHUP)
    harness.wait_until(lambda: "SIGHUP: the level of the log is info" in worker.output(), "the worker reads its level")
    assert cluster.coordinator.alive() and worker.alive()
    assert "h1" in cluster.trainctl("hosts").stdout


def test_the_file_is_renamed_when_it_is_full(cluster):
    log, config = cluster.folder / "c.log", cluster.folder / "c.yaml"
    config.write_text(f"log: {{file: {log}, level: debug, max_bytes: 400, max_files: 2}}\n")
    cluster.start_coordinator("--config", config)

    def log_a_line():
        cluster.coordinator.signal(signal.SIGHUP)
        return (cluster.folder / "c.log.2").exists()

    harness.wait_until(log_a_line, "old files are kept")
    # The coordinator may not have handled the last signals yet, and would rename files during the checks.
    cluster.coordinator.signal(signal.SIGSTOP)
    assert not (cluster.folder / "c.log.3").exists()
    assert all(path.stat().st_size <= 1000 for path in cluster.folder.glob("c.log*"))


def test_a_file_that_cannot_be_opened_is_named(cluster):
    for program in ("trainyard-coordinator", "trainyard-worker"):
        done = subprocess.run([harness.BIN / program, "--state", cluster.folder / "s", "--log-file", "/none/x.log",
                               *(("--coordinator", "127.0.0.1:1") if program.endswith("worker") else ())],
                              capture_output=True, text=True, timeout=30)
        assert done.returncode == 2 and "cannot open the log file /none/x.log" in done.stderr, done


def test_lines_for_the_journal_begin_with_their_priority(cluster):
    read, write = os.pipe()
    with open(read) as pipe:
        info = os.fstat(write)
        program = subprocess.Popen([harness.BIN / "trainyard-coordinator", "--state", cluster.folder / "s", "--listen",
                                    "127.0.0.1:0", "--metrics", ""], stderr=write,
                                   env={**os.environ, "JOURNAL_STREAM": f"{info.st_dev}:{info.st_ino}"})
        os.close(write)
        try:
            lines = [pipe.readline() for _ in range(3)]  # several threads log them, so their order may differ
        finally:
            program.kill()
            program.wait()
    assert all(line.startswith("<6>") for line in lines) and any("serving on" in line for line in lines), lines
