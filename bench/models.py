#!/usr/bin/env python3
"""./dev bench models compares our tokenizers with the Python library `tokenizers`, one thread each.

The library trains a tokenizer with the settings of GPT-2 and one with those of Llama-3 on the spot. Both sides then
encode the same 10 MB of text and code, in alternating order, and must give the same number of tokens.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import run
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


def main():
    rows = [make_row("gpt2"), make_row("llama3")]
    parser = argparse.ArgumentParser(prog="./dev bench models", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="*", help=f"rows to measure: {', '.join(row.name for row in rows)}; none: all")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="rounds of alternating pairs (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--save", metavar="NAME", help="also write bench/results/NAME.json and NAME.md")
    args = parser.parse_args()
    unknown = sorted(set(args.row) - {row.name for row in rows})
    if unknown or args.pairs < 1:
        parser.error(f"unknown row: {', '.join(unknown)}" if unknown else "--pairs must be 1 or more")
    rows = [row for row in rows if not args.row or row.name in args.row]
    facts = run.machine()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        try:
            texts = documents()
            lines = "".join(json.dumps(text) + "\n" for text in texts)
            paths = make_tokenizers(folder, texts)
            measures = {}
            for name, path in paths.items():
                measures[f"ours-{name}"] = lambda path=path: time_ours(path, lines)
                measures[f"theirs-{name}"] = lambda path=path: time_theirs(path, texts)
            run.measure(rows, measures, args.pairs, lambda line: print(f"bench: {line}", file=sys.stderr, flush=True))
        except sides.MeasurementFailed as failure:
            sys.exit(f"bench: {failure}")
    summaries = [row.summary() for row in rows]
    document = json.dumps({"machine": facts, "pairs": args.pairs, "rows": summaries}, indent=1)
    text = run.table(facts, summaries, args.pairs)
    print(document if args.json else text)
    if args.save:
        run.save(args.save, document, text)


if __name__ == "__main__":
    main()
