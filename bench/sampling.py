"""The rows of `./dev bench models` that measure the generation of text: `trainctl sample` compared with `generate` of
transformers, both with a cache of keys and values, on a random Llama of lab-10m's size. Every token is the most likely
one."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import model_rows
import run
import sides

PROMPT, NEW, BATCH = 16, 224, 8
THREADS = 1  # the default of trainctl sample for a model of this size


@dataclasses.dataclass
class Generated:
    tokens_per_s: float
    tokens: int


def llama_folder(folder):
    import transformers

    target = pathlib.Path(folder) / "sampled-llama"
    if not target.exists():
        shape = model_rows.LLAMA
        config = transformers.LlamaConfig(
            vocab_size=256, hidden_size=shape.width, intermediate_size=model_rows.INNER,
            num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
            num_key_value_heads=model_rows.KV_HEADS, max_position_embeddings=shape.context, bos_token_id=None,
            eos_token_id=None)
        transformers.LlamaForCausalLM(config).save_pretrained(target)
    return target


def prompts(batch):
    return [bytes(97 + (place * 7 + number) % 26 for place in range(PROMPT)).decode() for number in range(batch)]


def sample_ours(folder, batch):
    file = pathlib.Path(folder) / f"prompts-{batch}.txt"
    file.write_text("".join(prompt + "\n" for prompt in prompts(batch)))
    command = [sides.BIN / "trainctl", "sample", llama_folder(folder), "--tokenizer", "bytes", "--prompts", file,
               "--tokens", NEW, "--temperature", 0, "--batch", batch, "--threads", THREADS, "--json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=sides.LIMIT_S)
    if done.returncode != 0:
        raise sides.MeasurementFailed(f"trainctl sample ended with {done.returncode}:\n{done.stderr[-2000:]}")
    texts = [json.loads(line) for line in done.stdout.splitlines()]
    tokens = sum(len(text["generated_tokens"]) for text in texts)
    return Generated(tokens / max(text["seconds"] for text in texts), tokens)


def sample_theirs(folder, batch):
    command = [sys.executable, sides.PEERS / "generate_transformers.py", llama_folder(folder), NEW, THREADS,
               *prompts(batch)]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=sides.LIMIT_S)
    if done.returncode != 0:
        raise sides.MeasurementFailed(f"transformers ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return Generated(**json.loads(done.stdout.splitlines()[-1]))


def make_row(batch):
    sides_of = (f"sample-ours-{batch}", f"sample-theirs-{batch}")

    def compare(measured):
        ours, theirs = (measured[side] for side in sides_of)
        if not ours.tokens == theirs.tokens == batch * NEW:
            raise sides.MeasurementFailed(f"{ours.tokens} and {theirs.tokens} tokens instead of {batch * NEW}")
        return ours.tokens_per_s, theirs.tokens_per_s, ours.tokens_per_s / theirs.tokens_per_s

    what = f"sampling with {'a prompt' if batch == 1 else f'{batch} prompts'}: tokens/s ÷ generate of transformers"
    return run.Row(f"sample-{batch}", what, "ratio", "higher", 1.5, 3.0, compare, sides_of)


def make_rows():
    return [make_row(1), make_row(BATCH)]


def make_measures(folder):
    measures = {}
    for batch in (1, BATCH):
        measures[f"sample-ours-{batch}"] = lambda batch=batch: sample_ours(folder, batch)
        measures[f"sample-theirs-{batch}"] = lambda batch=batch: sample_theirs(folder, batch)
    return measures
