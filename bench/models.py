#!/usr/bin/env python3
"""./dev bench models compares models, tokenizers, sampling and the loading of weights with the Python libraries and dd.

In the rows of the tokenizers, the Python library tokenizers first trains one tokenizer with the settings of GPT-2 and
one with those of Llama-3. The library and our program then encode the same 10 MB of text and code with one thread each,
in alternating order, and must give the same number of tokens.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import model_rows
import run
import sampling
import sides

PROGRAM = sides.BIN / "tests" / "tokenize_lines"
BYTES = 10_000_000
DOCUMENT = 100_000  # characters


def documents():
    """The prose and the code of this repository and the C++ headers, up to BYTES."""
    paths = [path for pattern in ("docs/**/*.md", "*/**/*.cc", "*/**/*.h", "tests/**/*.py")
             for path in sorted(sides.ROOT.glob(pattern)) if "build" not in path.parts]
    paths += sorted(path for path in pathlib.Path("/usr/include/c++").rglob("*") if path.is_file())
    texts, size = [], 0
    for path in paths:
        text = path.read_text(errors="replace")
        for begin in range(0, len(text), DOCUMENT):
            if size >= BYTES:
                return texts
            texts.append(text[begin:begin + DOCUMENT])
            size += len(texts[-1].encode())
    raise sides.MeasurementFailed(f"there are only {size} bytes of text and code here")


def make_tokenizers(folder, texts):
    sys.path[:0] = [str(sides.ROOT / "tests" / "interop"), str(sides.ROOT / "tests" / "cluster")]
    import tokenizers_test

    tokenizers_test.training_text = lambda: texts[:40]
    paths = {}
    for name in ("gpt2", "llama3"):
        paths[name] = pathlib.Path(folder) / f"{name}.json"
        tokenizers_test.KINDS[name]().save(str(paths[name]))
    return paths


def time_ours(path, lines):
    done = subprocess.run([PROGRAM, path, "--time", "1"], input=lines, capture_output=True, text=True)
    if done.returncode != 0 or "error" in done.stdout:
        raise sides.MeasurementFailed(f"{PROGRAM} failed: {done.stdout}{done.stderr}")
    result = json.loads(done.stdout)
    return result["seconds"][0], result["tokens"]


def time_theirs(path, texts):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    began = time.perf_counter()
    tokens = sum(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)
    return time.perf_counter() - began, tokens


def make_row(name):
    def compare(measured):
        (ours_s, ours_tokens), (theirs_s, theirs_tokens) = measured[f"ours-{name}"], measured[f"theirs-{name}"]
        if ours_tokens != theirs_tokens:
            raise sides.MeasurementFailed(f"{name}: {ours_tokens} tokens, but the library has {theirs_tokens}")
        megabytes = BYTES / 1e6
        return megabytes / ours_s, megabytes / theirs_s, theirs_s / ours_s

    what = f"tokenizing 10 MB of text and code as {name} does, one thread: MB/s ÷ tokenizers"
    return run.Row(f"tokenize-{name}", what, "ratio", "higher", 1.0, 2.0, compare, (f"ours-{name}", f"theirs-{name}"))


def tokenizer_measures(folder):
    texts = documents()
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    measures = {}
    for name, path in make_tokenizers(folder, texts).items():
        measures[f"ours-{name}"] = lambda path=path: time_ours(path, lines)
        measures[f"theirs-{name}"] = lambda path=path: time_theirs(path, texts)
    return measures


def main():
    args, rows = run.parse_arguments("./dev bench models", __doc__, [make_row("gpt2"), make_row("llama3"),
                                                                    *model_rows.make_rows(), *sampling.make_rows()])
    facts = run.machine_for_figures()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        try:
            measures = {**model_rows.make_measures(folder), **sampling.make_measures(folder)}
            if any(row.name.startswith("tokenize-") for row in rows):
                measures.update(tokenizer_measures(folder))
            run.measure(rows, measures, args.pairs, lambda line: print(f"bench: {line}", file=sys.stderr, flush=True))
        except sides.MeasurementFailed as failure:
            sys.exit(f"bench: {failure}")
    run.report(args, facts, rows)


if __name__ == "__main__":
    main()
