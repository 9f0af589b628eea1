#!/usr/bin/env python3
"""./dev bench cpu: how fast this CPU trains, compared with the better of PyTorch as installed and PyTorch tuned.

Each round runs the sides of a row one after another, in the opposite order of the round before. A figure is the median
of the rounds. PyTorch tuned means that MKL uses the kernels of Intel's CPUs (peers/mkl_lever.c); on Intel's CPUs both
are the same. Keep one result per kind of CPU: `--save cpu-intel`, `cpu-amd-avx512`, `cpu-amd-avx2`.
"""

import dataclasses
import re
import subprocess

import data_parallel
import run
import sides

ONE_RANK = data_parallel.ONE_RANK
TINY_ONE_RANK = dataclasses.replace(sides.TINY, ranks=1, threads=2)
TINY_ONE_THREAD = dataclasses.replace(TINY_ONE_RANK, threads=1)
GPT2_124M = sides.Shape(layers=12, heads=12, width=768, context=256, batch=2, warmup=2, steps=4, ranks=1, threads=2)

SHARED = ("fp32", "bf16", "ddp", "zero1", "fsdp", "tiny-ddp", "tiny-fsdp")  # with `./dev bench data-parallel`
OURS = {
    **{f"ours-{name}": data_parallel.OURS[f"ours-{name}"] for name in SHARED},
    "ours-tiny-eager": (TINY_ONE_RANK, {}),
    "ours-tiny-one-thread": (TINY_ONE_THREAD, {}),
    "ours-gpt2": (GPT2_124M, {}),
}
PEERS = {**data_parallel.PEERS, "tiny-eager": ("eager", False), "gpt2": ("eager", False)}


def has_16_bit_products():
    """Whether the CPU has instructions that multiply bf16 numbers."""
    return bool(re.search(r"\b(avx512_bf16|amx_bf16)\b", open("/proc/cpuinfo").read()))


def against_better(name, attribute="tokens_per_s"):
    """Returns a function that computes our figure ÷ the better one of PyTorch as installed and PyTorch tuned, and the
    names of the three measurements."""

    def compare(measured):
        ours = getattr(measured[f"ours-{name}"], attribute)
        peers = [getattr(measured[f"{side}-{name}"], attribute) for side in ("installed", "tuned")]
        peer = max(peers) if attribute == "tokens_per_s" else min(peers)
        return ours, peer, ours / peer

    return compare, (f"ours-{name}", f"installed-{name}", f"tuned-{name}")


def flops_of_products(shape):
    """Floating-point operations of the matrix products of one step, in forward and for both gradients. Counts the
    products of the weights, and those of attention for the half of the positions that are not masked."""
    weights = 12 * shape.layers * shape.width**2 + 256 * shape.width
    attention = shape.layers * shape.context * shape.width
    return 6 * (weights + attention) * shape.tokens_per_step


def peak_flops(threads):
    """The rate of the fastest fp32 product of lab-10m on this many threads, in operations per second."""
    done = subprocess.run([sides.BIN / "tests" / "product_speeds", "--threads", str(threads), "--rounds", "5"],
                          capture_output=True, text=True, check=True)
    rates = [float(line.split("|")[3]) for line in done.stdout.splitlines() if line.startswith("| lab-10m")]
    return 1e9 * max(rates)


def share_at_peak(measured):
    """The seconds that the step's products take at the peak rate, as a share of the step, in percent."""
    least_s, step_s = flops_of_products(ONE_RANK) / measured["peak"], measured["ours-fp32"].step_s
    return least_s, step_s, 100 * least_s / step_s


def make_rows():
    def compared(name, what, bar, aim, attribute="tokens_per_s", better="higher", row=None):
        compare, measures = against_better(name, attribute)
        return run.Row(row or name, what, "ratio", better, bar, aim, compare, measures)

    def ours_only(name, what, left, right, bar, aim):
        compare = run.ratio_of(left, right, "tokens_per_s")
        return run.Row(name, what, "ratio", "higher", bar, aim, compare, (left, right))

    if has_16_bit_products():
        bf16 = compared("bf16", "the same, bf16 ÷ eager autocast", 1.15, 1.45)
    else:
        bf16 = ours_only("bf16", "the same, bf16 ÷ our fp32 (the CPU has no products of bf16)", "ours-bf16",
                         "ours-fp32", 0.8, 0.95)
    return [
        compared("fp32", "lab-10m fp32, 1 rank x 2 threads ÷ eager", 1.1, 1.2),
        bf16,
        ours_only("tiny-threads", "tiny, 1 rank: 2 threads ÷ 1 thread", "ours-tiny-eager", "ours-tiny-one-thread", 1.2,
                  1.6),
        compared("ddp", "lab-10m, 2 ranks x 1 thread: DDP ÷ torchrun DDP", 1.15, 1.25),
        compared("zero1", "the same: ZeRO-1 ÷ torchrun ZeroRedundancyOptimizer", 1.2, 1.3),
        compared("fsdp", "the same: FSDP ÷ torchrun FSDP2", 1.25, 1.4),
        run.Row("peak-share", "lab-10m fp32, 1 rank x 2 threads: products at their measured peak rate ÷ step", "%",
                "higher", 75, 85, share_at_peak, ("peak", "ours-fp32")),
        compared("tiny-eager", "tiny, 1 rank x 2 threads ÷ eager", 2, 3),
        compared("tiny-ddp", "tiny, 2 ranks: DDP ÷ torchrun DDP", 2.5, 4),
        compared("tiny-fsdp", "tiny, 2 ranks: FSDP ÷ torchrun FSDP2", 5, 9),
        compared("gpt2", "layers of GPT-2 124M, context 256, batch 2, fp32, 1 rank x 2 threads ÷ eager", 1.05, 1.15),
        compared("tiny-ddp", "tiny, 2 ranks: command → end of the first step ÷ torchrun DDP", 0.35, 0.2,
                 "first_step_s", "lower", row="start"),
    ]


def make_measures(folder):
    return {"peak": lambda: peak_flops(ONE_RANK.threads), **sides.make_measures(OURS, PEERS, folder)}


def main():
    run.run_pairs("./dev bench cpu", __doc__, make_rows(), make_measures)


if __name__ == "__main__":
    main()
