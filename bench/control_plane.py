#!/usr/bin/env python3
"""./dev bench control-plane: the cost and the reaction times of the control plane, compared with fixed bars.

Rows with simulated hosts run trainyard-bench-control: the worker daemon's production core and session for N hosts in
one process, with a connection each, and a real trainyard-coordinator. Rows about training run real daemons and
trainers. bench/README.md describes the rows.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile

import control_training
import run

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = ROOT / "build" / "bin"
LIMIT_S = 900


class MeasurementFailed(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Row:
    """`measure` returns figures by name, of which `figure` is compared with the bar: the limit that it must meet. `aim`
    is the better value that we want; `duration_s` is the approximate time that `measure` needs."""

    name: str
    what: str
    figure: str
    unit: str
    bar: float
    aim: float
    measure: object
    duration_s: int
    better: str = "lower"


def simulated(kind, hosts, samples=None, limit=60):
    """`limit`: seconds after which no further sample is started."""

    def measure(options):
        with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
            count = max(1, min(samples or 1, options.samples or 10**6))
            command = [BIN / "trainyard-bench-control", kind, "--coordinator", BIN / "trainyard-coordinator",
                       "--folder", folder, "--hosts", hosts, "--samples", count, "--seconds", options.seconds,
                       "--limit", limit]
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode != 0:
                log = pathlib.Path(folder) / "coordinator.log"
                last = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
                raise MeasurementFailed("\n".join([done.stderr.strip(), *last]))
            return json.loads(done.stdout)

    return measure


def make_rows():
    rows = [Row(f"formation-{n}", f"last of {n:,} hosts connects → every rank has received go, p99", "p99", "ms", bar,
                aim,
                simulated("formation", n, samples, limit), duration_s)
            for n, bar, aim, samples, limit, duration_s in [
                (64, 15, 5, 200, 60, 10), (256, 60, 25, 200, 120, 50), (1024, 300, 130, 100, 300, 150),
                (4096, 6000, 2000, 10, 240, 150)]]
    rows += [Row(f"storm-{n}", f"{n:,} hosts connect at the same time → all attached, p99", "p99", "ms", bar, aim,
                 simulated("storm", n, 20), duration_s)
             for n, bar, aim, duration_s in [(256, 150, 45, 5), (1024, 500, 150, 20)]]
    rows += [Row(f"death-{n}", f"a trainer is killed → the last of {n:,} daemons is informed, p99", "p99", "ms", bar,
                 aim, simulated("death", n, 100, 150), duration_s)
             for n, bar, aim, duration_s in [(2, 20, 2, 5), (256, 30, 5, 30), (1024, 60, 22, 120)]]
    rows += [
        Row("restart", "coordinator kill -9 → restarted, 1,024 hosts attached, job adopted, worst of 10",
            "max", "ms", 1500, 400, simulated("restart", 1024, 10), 20),
        Row("steady-cpu", "1,024 hosts with one heartbeat per second: CPU, % of a core", "cpu_percent", "%", 6, 2.5,
            simulated("steady", 1024), 30),
        Row("steady-memory", "1,024 hosts with one heartbeat per second: memory of the coordinator",
            "memory_mib", "MiB", 100, 65, simulated("steady", 1024), 30),
        Row("events", "durable facts per second through 1,024 streams", "per_s", "/s", 50_000, 150_000,
            simulated("events", 1024), 30, better="higher"),
        Row("overhead", "CPU of coordinator, daemon, shims, link threads ÷ the trainers', lab-10m", "percent", "%",
            0.5, 0.1, control_training.measure_overhead, 80),
        Row("stopped-coordinator", "longest step while the coordinator is stopped ÷ median step", "ratio", "×", 1.5,
            1.1, lambda options: control_training.measure_stopped(options, "coordinator"), 90),
        Row("stopped-daemon", "longest step while the daemon is stopped ÷ median step", "ratio", "×", 1.5, 1.1,
            lambda options: control_training.measure_stopped(options, "daemon"), 90),
    ]
    for how, what in (("stop", "is stopped by SIGSTOP"), ("spin", "spins before a collective"),
                       ("skip", "skips a step's collectives")):
        for step_s, duration_s in ((0.1, 15), (2.0, 50)):
            rows.append(Row(f"hang-{how}-{step_s:g}s",
                            f"a rank {what}, steps of {step_s:g} s → the decision names it, minus 2 steps",
                            "less_steps_s", "s", 10, 5,
                            lambda _, how=how, step_s=step_s: control_training.measure_hang(how, step_s), duration_s))
    rows.append(Row("host-cut", "a host is disconnected → job RECOVERING, minus 2 steps", "less_steps_s", "s", 3, 3,
                    control_training.measure_host_cut, 20))
    return rows


def number(value):
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def compare_with_bar(row, figures):
    value = figures[row.figure]
    meets = value >= row.bar if row.better == "higher" else value <= row.bar
    return {"row": row.name, "what": row.what, "unit": row.unit, "better": row.better, "bar": row.bar, "aim": row.aim,
            "figure": value, "figure_name": row.figure, "meets_bar": meets, "all": figures}


def other_figures(result):
    figures = result["all"]
    return ", ".join(f"{name} {number(value)}" for name, value in figures.items() if name != result["figure_name"])


def table(environment, results):
    lines = [f"{environment['cpu']}, {environment['cores']} cores, which coordinator, hosts and trainers share; "
             f"commit {environment['commit']}, {environment['date']}", "",
             "| What | Figure | Bar | Aim | | Other figures |", "|---|---|---|---|---|---|"]
    for result in results:
        sign = "≥" if result["better"] == "higher" else "≤"
        lines.append(f"| {result['what']} | {number(result['figure'])} {result['unit']} | "
                     f"{sign} {number(result['bar'])} | "
                     f"{number(result['aim'])} | {'ok' if result['meets_bar'] else 'MISSES BAR'} | "
                     f"{other_figures(result)} |")
    return "\n".join(lines) + "\n"


def read_arguments(rows):
    parser = argparse.ArgumentParser(prog="./dev bench control-plane", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="*", help="rows to measure; none: all")
    parser.epilog = "\n".join(["rows, with their approximate duration on two cores:", *(
        f"  {row.name:<20} {row.duration_s:>4} s  {row.what}" for row in rows),
        f"  {'all of them':<20} {sum(row.duration_s for row in rows):>4} s"])
    parser.add_argument("--samples", type=int, metavar="N", help="maximum number of samples of a row")
    parser.add_argument("--seconds", type=float, default=20, metavar="S",
                        help="duration of the rows steady and events (default 20)")
    parser.add_argument("--train-seconds", type=float, default=60, metavar="S",
                        help="seconds of training in the row overhead (default 60)")
    parser.add_argument("--stop-seconds", type=float, default=60, metavar="S",
                        help="time for which the coordinator or the daemon is stopped (default 60)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--save", metavar="NAME", help="also write bench/results/NAME.json and NAME.md")
    options = parser.parse_args()
    unknown = sorted(set(options.row) - {row.name for row in rows})
    if unknown:
        parser.error(f"unknown row: {', '.join(unknown)}")
    if options.samples is not None and options.samples < 1:
        parser.error("--samples must be 1 or more")
    return options


def main():
    rows = make_rows()
    options = read_arguments(rows)
    environment = run.machine_for_figures()
    results, failed = [], []
    for row in rows:
        if options.row and row.name not in options.row:
            continue
        print(f"bench: {row.name}", file=sys.stderr, flush=True)
        try:
            results.append(compare_with_bar(row, row.measure(options)))
        except (MeasurementFailed, control_training.MeasurementFailed, AssertionError,
                subprocess.TimeoutExpired) as failure:
            failed.append(row.name)
            print(f"bench: {row.name} could not be measured: {failure}", file=sys.stderr, flush=True)
    document = json.dumps({"machine": environment, "rows": results, "not_measured": failed}, indent=1)
    text = table(environment, results)
    print(document if options.json else text)
    if options.save:
        folder = ROOT / "bench" / "results"
        folder.mkdir(exist_ok=True)
        (folder / f"{options.save}.json").write_text(document + "\n")
        (folder / f"{options.save}.md").write_text(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
