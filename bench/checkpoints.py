#!/usr/bin/env python3
"""./dev bench checkpoints: the cost of saves, and our saves and loads compared with torch.distributed.checkpoint and
dd.

Each round runs the sides of a comparison one after another, in the opposite order of the round before. A figure is the
median of the rounds' ratios, with the smallest and the largest. bench/README.md describes the rows.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import run
import sides

ROOT = sides.ROOT
STEPS = 100
SAVE_EVERY = 10
WARMUP_STEPS = 3
# The rows that use this depend only on the size of the state, so a batch of 1 makes their steps short.
STATE = dataclasses.replace(sides.LAB_10M, batch=1)
SAVED = re.compile(r"^saved step (\d+) in ([\d.]+) s.* \(([\d.]+) MB\)$", re.MULTILINE)
RESTORED = re.compile(r"^resumes after step \d+ from .*, read in ([\d.]+) s$", re.MULTILINE)


@dataclasses.dataclass
class Job:
    """A run of Trainyard: seconds of its steps, and the saves and the restore in rank 0's log."""

    steps_s: list
    save_s: list
    restore_s: float
    folder: pathlib.Path

    @property
    def wall_s(self):
        return sum(self.steps_s[WARMUP_STEPS:])

    @property
    def longest_ratio(self):
        return max(self.steps_s[WARMUP_STEPS:]) / statistics.median(self.steps_s[WARMUP_STEPS:])


def settings_of(shape, folder, **changes):
    settings = {
        "name": "bench", "train.model.layers": shape.layers, "train.model.heads": shape.heads,
        "train.model.width": shape.width,
        "train.model.context": shape.context, "train.data.text": [str(sides.text_file(folder))],
        "train.batch.global": shape.batch * shape.ranks, "train.batch.micro": shape.batch, "train.optimizer.lr": 3e-4,
        "train.schedule.kind": "constant", "train.schedule.warmup_steps": 0, "train.evaluate.every_steps": 0,
        "resources.ranks": shape.ranks, "resources.threads_per_rank": shape.threads, "checkpoint.keep": 2,
        "parallel.data": "fsdp",
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]


def run_job(shape, folder, run_folder, steps, every, resume=False):
    """One `trainctl run`. A step's time is that between two reported steps, so waits between steps are included."""
    command = [sides.BIN / "trainctl", "run", ROOT / "configs" / "jobs" / "lab-10m.yaml", "--json",
               *(["--resume"] if resume else []),
               *settings_of(shape, folder, train__steps=steps, checkpoint__every_steps=every,
                            checkpoint__dir=str(run_folder))]
    before, steps_s, errors = None, [], ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        for line in process.stdout:
            now = time.perf_counter()
            if json.loads(line)["event"] == "step":
                steps_s += [now - before] if before else []
                before = now
        errors = process.stderr.read()
    if process.returncode != 0:
        raise sides.MeasurementFailed(f"trainctl run ended with {process.returncode}:\n{errors[-2000:]}")
    logs = sorted(pathlib.Path(run_folder, ".trainyard").rglob("*log*"), key=lambda path: path.stat().st_mtime)
    text = "\n".join(path.read_text(errors="replace") for path in logs if path.is_file())
    restored = RESTORED.findall(text)
    saves = [float(seconds) for _, seconds, _ in SAVED.findall(text)]
    return Job(steps_s, saves, float(restored[-1]) if restored else 0, run_folder)


def newest(run_folder):
    return max(path for path in pathlib.Path(run_folder).iterdir() if path.name.startswith("step-"))


def bytes_of(checkpoint):
    return sum(path.stat().st_size for path in checkpoint.iterdir())


def dd_write_s(folder, size):
    target = pathlib.Path(folder) / "dd"
    begin = time.perf_counter()
    subprocess.run(["dd", "if=/dev/zero", f"of={target}", "bs=1M", f"count={max(1, size >> 20)}", "conv=fsync"],
                   check=True,
                   capture_output=True)
    seconds = time.perf_counter() - begin
    target.unlink()
    return seconds


def dd_read_s(checkpoint):
    begin = time.perf_counter()
    for path in sorted(checkpoint.iterdir()):
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M"], check=True, capture_output=True)
    return time.perf_counter() - begin


@dataclasses.dataclass
class SaveAndLoad:
    save_s: float
    load_s: float
    dd_write_s: float = 0
    dd_read_s: float = 0

    @property
    def both_s(self):
        return self.save_s + self.load_s


def ours_save_and_load(folder):
    """The save at the end of a run, when nothing else runs, and the restore of the run that resumes from it."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        run_folder = pathlib.Path(temporary) / "run"
        saved = run_job(STATE, folder, run_folder, steps=2, every=0)
        checkpoint = newest(run_folder)
        write_s, read_s = dd_write_s(temporary, bytes_of(checkpoint)), dd_read_s(checkpoint)
        restored = run_job(STATE, folder, run_folder, steps=3, every=0, resume=True)
        if not saved.save_s or not restored.restore_s:
            raise sides.MeasurementFailed("rank 0's log reports no save or no restore")
        return SaveAndLoad(saved.save_s[-1], restored.restore_s, write_s, read_s)


def peer_save_and_load(folder):
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        torchrun = pathlib.Path(sys.executable).with_name("torchrun")
        command = [torchrun, "--nproc-per-node", STATE.ranks, sides.PEERS / "dcp_torch.py", "--out", temporary,
                   "--layers", STATE.layers, "--heads", STATE.heads, "--width", STATE.width, "--seq", STATE.context,
                   "--threads", STATE.threads]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=folder,
                              timeout=sides.LIMIT_S)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not lines:
            raise sides.MeasurementFailed(f"dcp_torch.py ended with {done.returncode}:\n{done.stderr[-2000:]}")
        result = json.loads(lines[-1])
        return SaveAndLoad(min(result["save_s"]), min(result["load_s"]))  # the best, so that warm-up does not count


def training(folder, steps, every):
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        return run_job(sides.LAB_10M, folder, pathlib.Path(temporary) / "run", steps, every)


def first_and_later(folder):
    """The seconds of each save of a run, in order."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        saves = run_job(STATE, folder, pathlib.Path(temporary) / "run", steps=25, every=4).save_s
        if len(saves) < 3:
            raise sides.MeasurementFailed(f"rank 0's log reports {len(saves)} saves")
        return saves


def make_measures(folder, steps):
    return {
        "saving": lambda: training(folder, steps, max(1, steps // (STEPS // SAVE_EVERY))),
        "not-saving": lambda: training(folder, steps, 0),
        "ours-state": lambda: ours_save_and_load(folder),
        "peer-state": lambda: peer_save_and_load(folder),
        "saves": lambda: first_and_later(folder),
    }


def make_rows():
    def ratio(name, what, bar, aim, compare, measures):
        return run.Row(name, what, "ratio", "lower", bar, aim, compare, measures)

    def overhead(measured):
        saving, without = measured["saving"].wall_s, measured["not-saving"].wall_s
        return saving, without, saving / without

    def longest(measured):
        return max(measured["saving"].steps_s[WARMUP_STEPS:]), None, measured["saving"].longest_ratio

    def of_state(ours, against):
        def compare(measured):
            left, right = getattr(measured["ours-state"], ours), getattr(measured["ours-state"], against)
            return left, right, left / right

        return compare

    def first(measured):
        saves = measured["saves"]
        later = statistics.median(saves[1:])
        return saves[0], later, saves[0] / later

    return [
        ratio("overhead", f"lab-10m, 2 ranks: {STEPS} steps, saving every {SAVE_EVERY} ÷ {STEPS} steps without saves",
              1.05, 1.01, overhead, ("saving", "not-saving")),
        ratio("longest", "longest step of a run that saves ÷ median step", 1.3, 1.1, longest, ("saving",)),
        ratio("dcp", "sharded save + load ÷ torch.distributed.checkpoint (async_save, load), same state, until durable",
              0.8, 0.5,
              run.ratio_of("ours-state", "peer-state", "both_s"), ("ours-state", "peer-state")),
        ratio("write-dd", "write of a save ÷ dd with fsync of the same number of bytes", 1.4, 1.1,
              of_state("save_s", "dd_write_s"),
              ("ours-state",)),
        ratio("load-dd", "verified load ÷ dd of the same files", 1.5, 1.2, of_state("load_s", "dd_read_s"),
              ("ours-state",)),
        ratio("first", "first save ÷ a later one", 1.5, 1.1, first, ("saves",)),
    ]


def main():
    rows = make_rows()
    parser = argparse.ArgumentParser(prog="./dev bench checkpoints", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="*", help=f"rows to measure: {', '.join(row.name for row in rows)}; none: all")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N",
                        help=f"steps of a run for the rows overhead and longest (default {STEPS}; fewer only check "
                             "that these rows work)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--save", metavar="NAME", help="also write bench/results/NAME.json and NAME.md")
    parser.add_argument("--folder", help="folder for checkpoints (default: the folder of temporary files)")
    args = parser.parse_args()
    unknown = sorted(set(args.row) - {row.name for row in rows})
    if unknown or args.pairs < 1 or args.steps < 2 * WARMUP_STEPS:
        parser.error(f"unknown row: {', '.join(unknown)}" if unknown else
                     f"--pairs must be 1 or more, --steps {2 * WARMUP_STEPS} or more")
    rows = [row for row in rows if not args.row or row.name in args.row]

    environment = run.machine_for_figures()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-", dir=args.folder) as folder:
        try:
            run.measure(rows, make_measures(folder, args.steps), args.pairs,
                        lambda line: print(f"bench: {line}", file=sys.stderr, flush=True))
        except sides.MeasurementFailed as failure:
            sys.exit(f"bench: {failure}")
    summaries = [row.summary() for row in rows]
    document = json.dumps({"machine": environment, "pairs": args.pairs, "steps": args.steps, "rows": summaries},
                          indent=1)
    text = run.table(environment, summaries, args.pairs)
    print(document if args.json else text)
    if args.save:
        run.save(args.save, document, text)


if __name__ == "__main__":
    main()
