#!/usr/bin/env python3
"""./dev bench launch compares torchrun with `trainctl launch` and `trainctl run`, which start private daemons.

In the rows `hello`, `restart` and `cpu`, both sides start the same script (peers/launched.py) with the same Python. The
sides alternate, in the opposite order in every round, and a figure is the median of the rounds' ratios of seconds. The
row `cpu` is the CPU time of everything but the script (trainctl, private coordinator, daemon and shims; torchrun) in
percent of one core.
"""

import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import run
import sides

SCRIPT = sides.PEERS / "launched.py"
FIRST_STEPS = dataclasses.replace(sides.TINY, warmup=2, steps=8)
LIMIT_S = 300       # of one command
CPU_WINDOW_S = 20   # in which CPU time is measured
POLL_S = 0.01


def environment():
    """The commands' environment. PATH begins with the Python that has torch; `trainctl launch` takes it from there."""
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    return dict(os.environ, PATH=path, OMP_NUM_THREADS="1")


def ours(ranks, *arguments):
    return [sides.BIN / "trainctl", "launch", f"--nproc-per-node={ranks}", *arguments]


def torchrun(ranks, *arguments):
    return [pathlib.Path(sys.executable).with_name("torchrun"), f"--nproc-per-node={ranks}", *arguments]


def failed(command, status, output):
    text = " ".join(str(part) for part in command)
    return sides.MeasurementFailed(f"{text} ended with {status}:\n{output[-3000:]}")


def run_command(command, folder, expected=""):
    """Runs a command to its end and returns the seconds that it took."""
    began = time.monotonic()
    done = subprocess.run([str(part) for part in command], env=environment(), capture_output=True, text=True,
                          cwd=folder, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    if done.returncode != 0 or expected not in done.stdout:
        raise failed(command, done.returncode, done.stdout + done.stderr)
    return seconds


def measure_hello(launcher, folder):
    return run_command(launcher(2, SCRIPT, "hello"), folder, "sum 1")


def measure_overhead(launcher, folder):
    return run_command(launcher(8, "--no-python", "true"), folder)


def measure_restart(launcher, folder):
    """Seconds from the SIGKILL of rank 1 to the first line of the script in the last rank that runs again."""
    with tempfile.TemporaryDirectory(dir=folder) as marks:
        run_command(launcher(2, "--max-restarts=1", SCRIPT, "restart", marks), folder)
        read = [float(path.read_text()) for path in sorted(pathlib.Path(marks).glob("again-*"))]
        if len(read) != 2:
            raise sides.MeasurementFailed(f"{len(read)} of 2 ranks ran again")
        return max(read) - float((pathlib.Path(marks) / "killed").read_text())


def measure_first_step(side, folder):
    return side(FIRST_STEPS, folder).first_step_s


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def launchers_cpu_s(root):
    """(CPU seconds of the process `root` and of Trainyard's processes among its descendants, number of the latter)"""
    sys.path.insert(0, str(sides.ROOT / "tests" / "cluster"))
    import processes

    processes.start_reaper()
    own = [pid for pid in processes.descendants() if processes.name_of(pid).startswith("trainyard-")]
    return sum(cpu_s(pid) for pid in {root, *own}), len(own)


def measure_cpu(launcher, folder, window_s=None):
    """CPU time of the launcher in percent of one core, while its script trains."""
    window_s = window_s or CPU_WINDOW_S
    with tempfile.TemporaryDirectory(dir=folder) as marks, \
            open(pathlib.Path(marks) / "output", "w+", encoding="utf-8") as output:
        command = launcher(2, SCRIPT, "train", window_s + 20, marks)
        with subprocess.Popen([str(part) for part in command], env=environment(), stdout=output, stderr=output,
                              stdin=subprocess.DEVNULL, cwd=folder) as process:
            limit = time.monotonic() + LIMIT_S
            while not (pathlib.Path(marks) / "trains").exists():
                if process.poll() is not None or time.monotonic() > limit:
                    process.kill()
                    process.wait()
                    output.seek(0)
                    raise failed(command, process.returncode, output.read())
                time.sleep(POLL_S)
            (before, count), began = launchers_cpu_s(process.pid), time.monotonic()
            time.sleep(window_s)
            (after, count_after), took = launchers_cpu_s(process.pid), time.monotonic() - began
            process.wait(LIMIT_S)
        expected = 4 if launcher is ours else 0  # coordinator, daemon and two shims
        if process.returncode != 0:
            output.seek(0)
            raise failed(command, process.returncode, output.read())
        if (count, count_after) != (expected, expected):
            output.seek(0)
            raise failed(command, process.returncode,
                         f"{expected} processes of Trainyard were expected next to the script; at first there were "
                         f"{count}, at the end {count_after}\n{output.read()}")
    return 100 * (after - before) / took


def ratio(name):
    def compare(measured):
        left, right = measured[f"{name}-ours"], measured[f"{name}-torchrun"]
        return left, right, left / right

    return compare


def own_figure(name):
    return lambda measured: (measured[f"{name}-ours"], measured[f"{name}-torchrun"], measured[f"{name}-ours"])


def make_rows():
    ratios = [
        ("hello", "launch --nproc-per-node 2 of a script that initialises gloo: seconds ÷ torchrun", 0.75, 0.5),
        ("overhead", "launch --no-python true, 8 ranks: seconds ÷ torchrun", 0.25, 0.1),
        ("restart", "SIGKILL of a rank → the script runs again: seconds ÷ torchrun --max-restarts", 0.5, 0.25),
        ("first-step", "trainctl run, tiny, 2 ranks, command → first step: seconds ÷ torchrun", 0.35, 0.2),
    ]
    rows = [run.Row(name, what, "ratio", "lower", bar, aim, ratio(name), (f"{name}-ours", f"{name}-torchrun"))
            for name, what, bar, aim in ratios]
    what = "CPU time of all but the script while it trains, in % of one core (peer: torchrun's)"
    return [*rows, run.Row("cpu", what, "%", "lower", 0.5, 0.1, own_figure("cpu"), ("cpu-ours", "cpu-torchrun"))]


def make_measures(folder):
    measures = {}
    for name, measure in (("hello", measure_hello), ("overhead", measure_overhead), ("restart", measure_restart),
                          ("cpu", measure_cpu)):
        measures[f"{name}-ours"] = lambda measure=measure: measure(ours, folder)
        measures[f"{name}-torchrun"] = lambda measure=measure: measure(torchrun, folder)
    measures["first-step-ours"] = lambda: measure_first_step(sides.run_ours, folder)
    measures["first-step-torchrun"] = lambda: measure_first_step(sides.run_peer, folder)
    return measures


def main():
    run.run_pairs("./dev bench launch", __doc__, make_rows(), make_measures)


if __name__ == "__main__":
    main()
