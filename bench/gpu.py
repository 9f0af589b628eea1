"""The rows of the benchmark table that need an NVIDIA GPU: GPT-2 124M in bf16, context 1024, on one GPU, compared with
PyTorch, eager and compiled.

data_parallel.py calls `reason_not_measured()`, which returns why no GPU row can be measured here, or None;
`make_measures(folder)`, which maps names of measurements to functions; and `make_rows()`, which returns the rows that
compare them. The names of rows contain "h200" on every GPU. Both sides train the same shape on the same bytes with
fused AdamW and clipping; PyTorch's autocast keeps fp32 weights, Trainyard computes with bf16 copies of fp32 masters.
"""

import json
import pathlib
import subprocess
import sys
import time

import run
import sides

VOCABULARY = 50257
GPT2 = sides.Shape(layers=12, heads=12, width=768, context=1024, batch=16, warmup=15, steps=40, ranks=1, threads=8)
KEYS = {"resources.device": "cuda", "train.precision": "bf16", "train.model.vocabulary": VOCABULARY}


def gpu_names():
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                                text=True,
                                timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in listed.stdout.splitlines() if line.strip()] if listed.returncode == 0 else []


def reason_not_measured():
    return None if gpu_names() else "no NVIDIA GPU here (nvidia-smi lists none)"


def run_peer(mode, folder):
    shape = GPT2
    command = [sys.executable, sides.PEERS / "gpt_torch.py", "--mode", mode, "--device", "cuda", "--bf16"]
    sizes = {"layers": shape.layers, "heads": shape.heads, "width": shape.width, "seq": shape.context,
             "vocab": VOCABULARY,
             "batch": shape.batch, "warmup": shape.warmup, "steps": shape.steps, "data": sides.text_file(folder)}
    for name, value in sizes.items():
        command += [f"--{name}", value]
    began = time.time()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=folder,
                          timeout=sides.LIMIT_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise sides.MeasurementFailed(f"PyTorch's {mode} on the GPU ended with {done.returncode}:\n"
                                      f"{done.stderr[-2000:]}")
    result = json.loads(lines[-1])
    return sides.Measured(result["tok_s"], result["first_step_unix"] - began, result["step_ms"] / 1e3,
                          last_loss=result["last_loss"])


def make_measures(folder):
    def ours(strategy):
        return lambda: sides.run_ours(GPT2, folder, {**KEYS, "parallel.data": strategy})

    return {"ours-h200": ours("ddp"), "ours-h200-fsdp": ours("fsdp"), "eager-h200": lambda: run_peer("eager", folder),
            "compile-h200": lambda: run_peer("compile", folder)}


def make_rows():
    names = gpu_names()
    where = f"{names[0] if names else 'H200'}, GPT-2 124M bf16, context {GPT2.context}"
    speed = "tokens_per_s"
    return [
        run.Row("h200-eager", f"{where}: tokens/s ÷ PyTorch eager", "ratio", "higher", 0, 1.5,
                run.ratio_of("ours-h200", "eager-h200", speed), ("ours-h200", "eager-h200")),
        run.Row("h200-compile", "the same ÷ torch.compile", "ratio", "higher", 0, 1.05,
                run.ratio_of("ours-h200", "compile-h200", speed), ("ours-h200", "compile-h200")),
        run.Row("h200-fsdp", "the same: FSDP on one rank ÷ DDP", "ratio", "higher", 0, 0.98,
                run.ratio_of("ours-h200-fsdp", "ours-h200", speed), ("ours-h200-fsdp", "ours-h200")),
    ]


def main():
    """Measures only the rows of this file."""
    if reason := reason_not_measured():
        sys.exit(f"bench: {reason}")
    run.run_pairs("bench/gpu.py", __doc__, make_rows(), lambda folder: make_measures(pathlib.Path(folder)))


if __name__ == "__main__":
    main()
