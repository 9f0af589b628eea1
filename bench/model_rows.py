"""The rows of ./dev bench models that measure training and loading: a Llama compared with transformers, the loading of
a folder compared with dd, and the memory of the head and its loss."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import run
import sides

# The size of lab-10m as a Llama: 10.0 million parameters, one process with 2 threads.
LLAMA = dataclasses.replace(sides.LAB_10M, ranks=1, threads=2)
KV_HEADS, INNER = 2, 1024
LOADED = re.compile(r"^begins with the weights of .*, read in ([\d.]+) s$", re.MULTILINE)
HEAD_ROWS, HEAD_WIDTH, HEAD_VOCABULARY = 8 * 256, 768, 50257


def llama_ours(folder):
    return sides.run_ours(LLAMA, folder, {"train.model.family": "llama", "train.model.kv_heads": KV_HEADS,
                                          "train.model.inner": INNER})


def llama_theirs(folder):
    command = [sys.executable, sides.PEERS / "llama_transformers.py", "--data", sides.text_file(folder)]
    for name, value in {"layers": LLAMA.layers, "heads": LLAMA.heads, "kv-heads": KV_HEADS, "width": LLAMA.width,
                        "inner": INNER, "context": LLAMA.context, "batch": LLAMA.batch, "warmup": LLAMA.warmup,
                        "steps": LLAMA.steps, "threads": LLAMA.threads}.items():
        command += [f"--{name}", value]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=sides.LIMIT_S)
    if done.returncode != 0:
        raise sides.MeasurementFailed(f"transformers ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])["tokens_per_s"]


def compare_llama(measured):
    ours = measured["llama-ours"].tokens_per_s
    return ours, measured["llama-theirs"], ours / measured["llama-theirs"]


def gpt2_folder(folder):
    """A folder of transformers with random weights of GPT-2's size: 498 MB in fp32."""
    import transformers

    target = pathlib.Path(folder) / "gpt2"
    if not target.exists():
        transformers.GPT2LMHeadModel(transformers.GPT2Config()).save_pretrained(target)
    return target


def load_ours(folder):
    """Seconds from the opening of the folder until two FSDP ranks hold their shards, as rank 0 logs them."""
    ids = pathlib.Path(folder) / "ids.jsonl"
    ids.write_text(json.dumps({"input_ids": list(range(64))}) + "\n")
    with tempfile.TemporaryDirectory(dir=folder) as run_folder:
        settings = {"name": "bench", "train.data.jsonl": [str(ids)], "train.data.validation": 0,
                    "train.model.path": str(gpt2_folder(folder)), "train.batch.global": 2, "train.batch.length": 8,
                    "train.steps": 1, "parallel.data": "fsdp", "resources.ranks": 2, "resources.threads_per_rank": 1,
                    "checkpoint.dir": f"{run_folder}/run"}
        job = pathlib.Path(run_folder) / "job.yaml"
        job.write_text("name: bench\n")
        command = [sides.BIN / "trainctl", "run", job]
        for key, value in settings.items():
            command += ["--set", f"{key}={json.dumps(value)}"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=run_folder,
                              timeout=sides.LIMIT_S)
        logs = "".join(path.read_text() for path in pathlib.Path(run_folder).rglob("*.log"))
        found = LOADED.search(logs)
        if done.returncode != 0 or found is None:
            problem = f"ended with {done.returncode}" if done.returncode != 0 else "logged no time of the load"
            raise sides.MeasurementFailed(f"trainctl run {problem}:\n{done.stderr[-2000:]}")
    return float(found.group(1))


def load_dd(folder):
    """Seconds in which dd reads the same file from the page cache."""
    file = gpt2_folder(folder) / "model.safetensors"
    began = time.perf_counter()
    subprocess.run(["dd", f"if={file}", "of=/dev/null", "bs=1M"], check=True, capture_output=True)
    return time.perf_counter() - began


def head_bytes(kind):
    program = sides.BIN / "tests" / "head_loss_memory"
    done = subprocess.run([str(part) for part in (program, kind, HEAD_ROWS, HEAD_WIDTH, HEAD_VOCABULARY)],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise sides.MeasurementFailed(f"{program} ended with {done.returncode}: {done.stderr}")
    return int(done.stdout)


def ratio(ours, theirs):
    return lambda measured: (measured[ours], measured[theirs], measured[ours] / measured[theirs])


def make_rows():
    return [
        run.Row("llama", "Llama of lab-10m's size, fp32, one process of 2 threads: tokens/s ÷ transformers with SDPA",
                "ratio", "higher", 1.05, 1.2, compare_llama, ("llama-ours", "llama-theirs")),
        run.Row("load", "seconds to load a 498 MB safetensors folder into 2 FSDP ranks ÷ dd from the page cache",
                "ratio", "lower", 1.5, 1.2, ratio("load-ours", "load-dd"), ("load-ours", "load-dd")),
        run.Row("head-memory",
                f"peak bytes of head and loss, vocabulary {HEAD_VOCABULARY}, 8 x 256 tokens ÷ the unfused version",
                "ratio", "lower", 0.5, 0.25, ratio("head-fused", "head-unfused"), ("head-fused", "head-unfused")),
    ]


def make_measures(folder):
    return {
        "llama-ours": lambda: llama_ours(folder),
        "llama-theirs": lambda: llama_theirs(folder),
        "load-ours": lambda: load_ours(folder),
        "load-dd": lambda: load_dd(folder),
        "head-fused": lambda: head_bytes("fused"),
        "head-unfused": lambda: head_bytes("unfused"),
    }
