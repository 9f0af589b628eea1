#!/usr/bin/env python3
"""./dev bench measures our speed and PyTorch's in the same run and prints the ratios.

Trainyard and PyTorch run alternately, and their order is swapped every round, so that a machine that slows down affects
both equally. The figure of a row is the median of its rounds; the table also shows the smallest and the largest.
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

import sides

ROOT = sides.ROOT


class Row:
    """One line of the table. `compare` computes its figure from the measurements named in `measures`. `bar` is the
    limit that the figure must meet, `aim` the better value that we want."""

    def __init__(self, name, what, unit, better, bar, aim, compare, measures):
        self.name, self.what, self.unit, self.better = name, what, unit, better
        self.bar, self.aim, self.compare, self.measures = bar, aim, compare, measures
        self.figures = []  # one (ours, peer or None, figure) per round

    def add(self, measured):
        self.figures.append(self.compare(measured))

    def summary(self):
        ours, peer, figures = zip(*self.figures)
        median = statistics.median(figures)
        meets = median >= self.bar if self.better == "higher" else median <= self.bar
        return {
            "row": self.name, "what": self.what, "unit": self.unit, "better": self.better, "bar": self.bar,
            "aim": self.aim,
            "ours_median": statistics.median(ours),
            "peer_median": statistics.median(peer) if peer[0] is not None else None,
            "median": median, "min": min(figures), "max": max(figures), "meets_bar": meets, "rounds": self.figures,
        }


def ratio_of(ours, peer, attribute):
    def compare(measured):
        left, right = getattr(measured[ours], attribute), getattr(measured[peer], attribute)
        return left, right, left / right

    return compare


def make_rows():
    speed, start = "tokens_per_s", "start_s"
    return [
        Row("lab-10m", "lab-10m fp32, 2 ranks x 1 thread: tokens/s ÷ torchrun DDP as installed", "ratio", "higher",
            1.8, 2.0,
            ratio_of("ours-10m", "peer-10m", speed), ("ours-10m", "peer-10m")),
        Row("lab-10m-tuned", "lab-10m fp32, 2 ranks x 1 thread: tokens/s ÷ torchrun DDP tuned", "ratio", "higher",
            0.96, 1.05,
            ratio_of("ours-10m", "tuned-10m", speed), ("ours-10m", "tuned-10m")),
        Row("tiny", "tiny, 2 ranks, batch 2 per rank: tokens/s ÷ torchrun DDP as installed", "ratio", "higher", 1.3,
            1.6,
            ratio_of("ours-tiny", "peer-tiny", speed), ("ours-tiny", "peer-tiny")),
        Row("start", "tiny: (time to the end of the first step - a steady step) ÷ that of torchrun DDP", "ratio",
            "lower", 0.4, 0.2,
            ratio_of("ours-tiny", "peer-tiny", start), ("ours-tiny", "peer-tiny")),
        Row("submit", "from submit to the first rank's main, with running daemons", "s", "lower", 0.5, 0.2,
            lambda measured: (measured["submit"], None, measured["submit"]), ("submit",)),
    ]


def make_measures(folder):
    @functools.cache
    def stubs():
        """The gRPC stubs of the API, which are generated when they are first needed."""
        sys.path.insert(0, str(ROOT / "tests" / "cluster"))
        import stubs as maker

        target = pathlib.Path(folder) / "stubs"
        target.mkdir()
        return maker.make(target)

    return {
        "ours-10m": lambda: sides.run_ours(sides.LAB_10M, folder),
        "peer-10m": lambda: sides.run_peer(sides.LAB_10M, folder),
        "tuned-10m": lambda: sides.run_peer(sides.LAB_10M, folder, tuned=True),
        "ours-tiny": lambda: sides.run_ours(sides.TINY, folder),
        "peer-tiny": lambda: sides.run_peer(sides.TINY, folder),
        "submit": lambda: sides.submit_to_main_s(folder, stubs()),
    }


def measure(rows, measures, pairs, log):
    """Adds a figure to each row in every round. `measures` maps the name of a measurement to its function."""
    wanted = [name for name in measures if any(name in row.measures for row in rows)]
    for round_index in range(pairs):
        measured = {}
        for name in wanted if round_index % 2 == 0 else reversed(wanted):
            log(f"round {round_index + 1} of {pairs}: {name}")
            measured[name] = measures[name]()
            # Speeds are printed at once, so that they are known even if the benchmark is stopped early.
            if speed := getattr(measured[name], "tokens_per_s", None):
                log(f"{name}: {speed:,.0f} tokens/s")
        for row in rows:
            row.add(measured)


def machine():
    """The facts about this machine, and the commit, that are saved with the figures."""
    model = next((line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
                 "unknown")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            cwd=ROOT).stdout.strip()
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "commit": commit or "unknown",
            "avx512": " avx512f " in open("/proc/cpuinfo").read(), "load_before": os.getloadavg()[0],
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}


def machine_for_figures():
    """Returns machine(). Prints a warning if the machine is busy."""
    facts = machine()
    if facts["load_before"] > 0.5:
        print(f"bench: the machine is busy (load {facts['load_before']:.1f}): the figures will be less reliable",
              file=sys.stderr)
    return facts


def number(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def table(environment, summaries, pairs):
    lines = [f"{environment['cpu']}, {environment['cores']} cores, "
             f"AVX-512 {'yes' if environment['avx512'] else 'no'}; commit {environment['commit']}, "
             f"{environment['date']}; {pairs} rounds, sides alternating", "",
             "| What | Ours | Peer | Figure: median (min, max) | Bar | Aim | |", "|---|---|---|---|---|---|---|"]
    for row in summaries:
        unit = "" if row["unit"] == "ratio" else f" {row['unit']}"
        sign = "≥" if row["better"] == "higher" else "≤"
        lines.append(f"| {row['what']} | {number(row['ours_median'])} | {number(row['peer_median'])} | "
                     f"{row['median']:.2f}{unit} ({row['min']:.2f}, {row['max']:.2f}) | {sign} {row['bar']} | "
                     f"{row['aim']} | "
                     f"{'ok' if row['meets_bar'] else 'MISSES BAR'} |")
    return "\n".join(lines) + "\n"


def save(name, document, text):
    folder = ROOT / "bench" / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(document + "\n")
    (folder / f"{name}.md").write_text(text)


def parse_arguments(prog, description, rows):
    """Returns the arguments of a benchmark that measures in alternating rounds, and the rows to measure."""
    parser = argparse.ArgumentParser(prog=prog, description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="*", help=f"rows to measure: {', '.join(row.name for row in rows)}; none: all")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="rounds of alternating pairs (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--save", metavar="NAME", help="also write bench/results/NAME.json and NAME.md")
    args = parser.parse_args()
    unknown = sorted(set(args.row) - {row.name for row in rows})
    if unknown or args.pairs < 1:
        parser.error(f"unknown row: {', '.join(unknown)}" if unknown else "--pairs must be 1 or more")
    return args, [row for row in rows if not args.row or row.name in args.row]


def report(args, environment, rows):
    summaries = [row.summary() for row in rows]
    document = json.dumps({"machine": environment, "pairs": args.pairs, "rows": summaries}, indent=1)
    text = table(environment, summaries, args.pairs)
    print(document if args.json else text)
    if args.save:
        save(args.save, document, text)


def run_pairs(prog, description, rows, make_measures):
    """The main function of a benchmark that measures in alternating rounds. `make_measures` takes a temporary
    folder."""
    args, rows = parse_arguments(prog, description, rows)
    environment = machine_for_figures()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        try:
            measure(rows, make_measures(folder), args.pairs,
                    lambda line: print(f"bench: {line}", file=sys.stderr, flush=True))
        except sides.MeasurementFailed as failure:
            sys.exit(f"bench: {failure}")
    report(args, environment, rows)


def main():
    run_pairs("./dev bench", __doc__, make_rows(), make_measures)


if __name__ == "__main__":
    main()
