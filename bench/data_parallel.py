#!/usr/bin/env python3
"""./dev bench data-parallel measures every data-parallel strategy and PyTorch's own strategies in the same run, and
prints the ratios.

Each round runs the sides of a row one after another, in the opposite order of the round before, so that a machine that
slows down affects all sides equally. A figure is the median of the rounds' ratios. PyTorch is measured twice: as
installed, and tuned, which means that MKL uses the kernels of Intel's CPUs (peers/mkl_lever.c). Rows that cannot be
measured here give the reason.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile

import gpu
import run
import sides

LAB_10M = sides.LAB_10M
ONE_RANK = dataclasses.replace(LAB_10M, ranks=1, threads=2)
TINY = sides.TINY
FOUR_RANKS = dataclasses.replace(LAB_10M, ranks=4, batch=4)
STATE_BYTES = 16  # per fp32 parameter: weight, gradient, two moments

# Our runs by the name of their measurement: the shape, and further keys of the job file.
OURS = {
    "ours-fp32": (ONE_RANK, {}),
    "ours-bf16": (ONE_RANK, {"train.precision": "bf16"}),
    "ours-ddp": (LAB_10M, {}),
    "ours-zero1": (LAB_10M, {"parallel.data": "zero1"}),
    "ours-zero2": (LAB_10M, {"parallel.data": "zero2"}),
    "ours-zero3": (LAB_10M, {"parallel.data": "zero3"}),
    "ours-fsdp": (LAB_10M, {"parallel.data": "fsdp"}),
    "ours-fsdp-kept": (LAB_10M, {"parallel.data": "fsdp", "parallel.reshard_after_forward": False}),
    "ours-hsdp": (FOUR_RANKS, {"parallel.data": "hsdp", "parallel.shard": 2}),
    "ours-recompute": (LAB_10M, {"parallel.recompute": "blocks"}),
    "ours-ddp-bf16": (LAB_10M, {"train.precision": "bf16"}),
    "ours-fsdp-bf16": (LAB_10M, {"parallel.data": "fsdp", "train.precision": "bf16"}),
    "ours-tiny-ddp": (TINY, {}),
    "ours-tiny-fsdp": (TINY, {"parallel.data": "fsdp"}),
}
# PyTorch's runs by the name of the row: the mode of gpt_torch.py, and whether it uses bf16.
PEERS = {
    "fp32": ("eager", False), "bf16": ("eager", True), "ddp": ("ddp", False), "zero1": ("zero1", False),
    "fsdp": ("fsdp2", False), "tiny-ddp": ("ddp", False), "tiny-fsdp": ("fsdp2", False),
}
# Name, description, bars and aims (run.Row). Each pair is for PyTorch as installed and for PyTorch tuned; None: the two
# are not compared.
COMPARISONS = [
    ("fp32", "lab-10m fp32, 1 rank x 2 threads ÷ PyTorch eager", (1.9, 0.96), (2.3, 1.15)),
    ("bf16", "lab-10m bf16, 1 rank x 2 threads ÷ PyTorch eager autocast", (1.12, 0.92), (1.8, 1.4)),
    ("ddp", "lab-10m, 2 ranks x 1 thread: our DDP ÷ torchrun DDP", (1.95, 1.02), (2.4, 1.2)),
    ("zero1", "the same: our ZeRO-1 ÷ torchrun DDP + ZeroRedundancyOptimizer", (1.95, 1.05), (2.4, 1.2)),
    ("fsdp", "the same: our FSDP ÷ torchrun FSDP2", (2.0, 1.15), (2.7, 1.4)),
    ("tiny-ddp", "tiny, 2 ranks: our DDP ÷ torchrun DDP", (2.0, None), (4, None)),
    ("tiny-fsdp", "tiny, 2 ranks: our FSDP ÷ torchrun FSDP2", (4, None), (9, None)),
]
TABLE = ["ours-ddp", "ours-zero1", "ours-zero2", "ours-zero3", "ours-fsdp", "ours-fsdp-kept", "ours-hsdp",
         "ours-recompute",
         "ours-ddp-bf16", "ours-fsdp-bf16"]


class Skip(Exception):
    """A row or a side that cannot be measured here; the text is the reason."""


def memory_of(measured, kind, field):
    uses = measured.memory.get(kind)
    if uses is None:
        raise Skip(f"the run reported no memory of kind {kind}")
    return uses[field]


def recompute_bytes(measured):
    recomputed, without = (memory_of(measured[name], "activations", "peak_bytes")
                           for name in ("ours-recompute", "ours-ddp"))
    return recomputed, without, recomputed / without


def recompute_time(measured):
    recomputed, without = measured["ours-recompute"].step_s, measured["ours-ddp"].step_s
    return recomputed, without, 100 * (recomputed / without - 1)


def state_bytes(measured):
    used = sum(memory_of(measured["ours-fsdp"], kind, "bytes") for kind in ("parameters", "gradients", "optimizer"))
    minimum = STATE_BYTES * LAB_10M.parameters / LAB_10M.ranks
    return used, minimum, used / minimum


def exchanges(measured):
    counts = measured["exchanges"]
    legacy, ddp = (sum(counts[side]["exchanges"].values()) for side in ("legacy", "ddp"))
    return ddp, legacy, legacy / ddp


def make_rows():
    rows = []
    for name, what, bars, aims in COMPARISONS:
        for side, bar, aim in zip(("installed", "tuned"), bars, aims):
            if bar is None:
                continue
            ours, peer = f"ours-{name}", f"{side}-{name}"
            full = what + (" as installed" if side == "installed" else " tuned")
            rows.append(run.Row(f"{name}-{side}", full, "ratio", "higher", bar, aim,
                                run.ratio_of(ours, peer, "tokens_per_s"), (ours, peer)))
    rows += [
        run.Row("fsdp-ddp", "lab-10m, 2 ranks x 1 thread: our FSDP ÷ our DDP", "ratio", "higher", 0.95, 0.98,
                run.ratio_of("ours-fsdp", "ours-ddp", "tokens_per_s"), ("ours-fsdp", "ours-ddp")),
        run.Row("recompute-memory", "recompute every block: peak of activations ÷ without", "ratio", "lower", 0.5, 0.5,
                recompute_bytes, ("ours-recompute", "ours-ddp")),
        run.Row("recompute-time", "recompute every block: increase of the step time", "%", "lower", 30, 25,
                recompute_time,
                ("ours-recompute", "ours-ddp")),
        run.Row("state-bytes", "bytes per rank just before the optimizer step, FSDP ÷ (16 x parameters ÷ ranks)",
                "ratio", "lower",
                1.02, 1.01, state_bytes, ("ours-fsdp",)),
        run.Row("exchanges", "exchanges per step: PyTorch's legacy DataParallel (simulated) ÷ its DDP", "ratio",
                "higher", 5, 5, exchanges, ("exchanges",)),
    ]
    return rows


def make_measures(folder):
    measures = sides.make_measures(OURS, PEERS, folder)
    measures["exchanges"] = lambda: sides.run_exchanges(LAB_10M, folder)
    return measures


def measure(rows, table, rounds, folder, log):
    """Takes the measurements of the rows and the table in every round. Returns results and reasons of failures by
    name."""
    measures, found, skipped = {**make_measures(folder), **gpu.make_measures(folder)}, {}, {}
    needed = {name for row in rows for name in row.measures} | set(table)
    wanted = [name for name in measures if name in needed]
    for round_index in range(rounds):
        measured = {}
        for name in wanted if round_index % 2 == 0 else reversed(wanted):
            if name in skipped:
                continue
            log(f"round {round_index + 1} of {rounds}: {name}")
            try:
                measured[name] = measures[name]()
            except sides.MeasurementFailed as failure:  # reported in the table; the other measurements continue
                skipped[name] = str(failure).splitlines()[0]
                log(f"{name}: {failure}")
                continue
            found.setdefault(name, []).append(measured[name])
        for row in rows:
            missing = [name for name in row.measures if name in skipped]
            try:
                if missing:
                    raise Skip(skipped[missing[0]])
                row.add(measured)
            except Skip as reason:
                skipped[row.name] = str(reason)
    return found, skipped


def strategy_lines(found, skipped):
    kinds = sorted({kind for name in TABLE for one in found.get(name, []) for kind in one.memory})
    lines = ["", "| Run (settings on lab-10m) | tokens/s | exposed communication | final loss | "
             + "".join(f"{kind}, peak MB | " for kind in kinds), "|" + "---|" * (4 + len(kinds))]
    for name in TABLE:
        settings = ", ".join(f"{key.split('.')[-1]} {json.dumps(value).strip(chr(34))}"
                             for key, value in OURS[name][1].items())
        shape = OURS[name][0]
        what = f"{name.removeprefix('ours-')}: {shape.ranks} ranks x {shape.batch} sequences; {settings or 'ddp'}"
        if name not in found:
            lines.append(f"| {what} | not measured: {skipped.get(name, 'not requested')} |" + " |" * (2 + len(kinds)))
            continue
        runs = found[name]
        speed, exposed = (statistics.median(getattr(one, key) for one in runs) for key in ("tokens_per_s", "exposed_s"))
        share = 100 * exposed / statistics.median(one.step_s for one in runs)
        peaks = [runs[-1].memory.get(kind, {}).get("peak_bytes") for kind in kinds]
        in_mb = "".join(f"{'-' if peak is None else f'{peak / 1e6:.1f}'} | " for peak in peaks)
        lines.append(f"| {what} | {run.number(speed)} | {exposed * 1e3:.1f} ms per step, {share:.1f} % | "
                     f"{runs[-1].last_loss:.4f} | {in_mb}")
    return lines


def main():
    rows, gpu_rows, no_gpu = make_rows(), gpu.make_rows(), gpu.reason_not_measured()
    names = [row.name for row in rows] + ["table"] + [row.name for row in gpu_rows]
    rows += [] if no_gpu else gpu_rows
    parser = argparse.ArgumentParser(prog="./dev bench data-parallel", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="*", help=f"rows to measure: {', '.join(names)}; none: all")
    parser.add_argument("--rows", dest="more", default="", metavar="A,B", help="rows to measure, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of alternating runs (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.add_argument("--save", metavar="NAME", help="also write bench/results/NAME.json and NAME.md")
    args = parser.parse_args()
    requested = args.row + [name for name in args.more.split(",") if name]
    if (unknown := sorted(set(requested) - set(names))) or args.rounds < 1:
        parser.error(f"unknown row: {', '.join(unknown)}" if unknown else "--rounds must be 1 or more")
    rows = [row for row in rows if not requested or row.name in requested]
    table = TABLE if not requested or "table" in requested else []

    environment = run.machine_for_figures()
    def log(line):
        print(f"bench: {line}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        found, skipped = measure(rows, table, args.rounds, folder, log)
    summaries = [row.summary() for row in rows if row.figures]
    not_measured = [{"row": row.name, "what": row.what, "why": skipped[row.name]} for row in rows if not row.figures]
    not_measured += [{"row": row.name, "what": f"{row.what} (aim {row.aim})", "why": no_gpu}
                     for row in gpu_rows if no_gpu and (not requested or row.name in requested)]
    all_runs = {name: [one if isinstance(one, dict) else dataclasses.asdict(one) for one in runs]
                for name, runs in found.items()}
    document = json.dumps({"machine": environment, "rounds": args.rounds, "rows": summaries,
                           "not_measured": not_measured, "runs": all_runs}, indent=1)
    text = run.table(environment, summaries, args.rounds)
    text += "".join(f"| {row['what']} | not measured: {row['why']} | | | | | |\n" for row in not_measured)
    if table:
        text += "\n".join(strategy_lines(found, skipped)) + "\n"
    print(document if args.json else text)
    if args.save:
        run.save(args.save, document, text)


if __name__ == "__main__":
    main()
