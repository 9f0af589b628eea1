"""Compares Trainyard's YAML reader with PyYAML on the shipped files and thousands of mutations of them. PyYAML must
accept every text that Trainyard accepts, with the same keys and texts in the same places. Trainyard refuses more:
values over several lines, tabs, tags, block scalars.

TRAINYARD_YAML_MUTANTS=N sets the number of mutated texts. A mutated text depends on its number only, so a failure can
be repeated."""

import json
import os
import pathlib
import random
import subprocess

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TRAINYARD_BIN", ROOT / "build" / "bin"))
CONFIGS = ROOT / "configs"
FILES = [*sorted((CONFIGS / "jobs").glob("*.yaml")), CONFIGS / "worker.yaml", CONFIGS / "coordinator.yaml"]
MUTANTS = int(os.environ.get("TRAINYARD_YAML_MUTANTS", "2000"))
PIECES = ["'", '"', ": ", ":", " #", "#", "- ", "-", "[", "]", "{", "}", ", ", ",", "&a ", "*a", "\t", " ", "  ", "|",
          ">",
          "? ", "---", "---\n", "...\n", "%YAML 1.1\n", "\r\n", "\r", "\n", "\u2028", "\x85", "\ufeff", "!!str ", "! ",
          "~",
          "null", "\\", "''", '""', '\\"', "@", "`", "%", "<<: *a", "\x00", "\x7f", "é", "=", "1_000", "0x1f", "yes",
          "\\x41", "\\u00e9", "\\N"]


def without_comments(text):
    lines = [line.split(" #")[0].rstrip() for line in text.splitlines() if not line.lstrip().startswith("#")]
    return "\n".join(line for line in lines if line) + "\n"


def mutate(text, rng):
    lines = text.split("\n")
    i = rng.randrange(len(lines))
    at = rng.randrange(len(text) + 1)
    kind = rng.randrange(11)
    if kind == 0:
        return text[:at] + text[at + 1:]
    if kind <= 3:
        return text[:at] + rng.choice(PIECES) + text[at:]
    if kind == 4:
        return text[:at] + rng.choice(PIECES) + text[at + 1:]
    if kind == 5:
        lines[i] = " " * rng.randrange(6) + lines[i].lstrip()
    elif kind == 6:
        lines.insert(i, lines[rng.randrange(len(lines))])
    elif kind == 7:
        del lines[i]
    elif kind == 8:
        lines[i:i + 2] = [" ".join(line.strip() for line in lines[i:i + 2])]
    elif kind == 9:
        key, colon, value = lines[i].partition(": ")
        lines[i] = key + colon + rng.choice(PIECES) + value + rng.choice(["", *PIECES])
    else:
        lines[i] = lines[i] + rng.choice(PIECES)
    return "\n".join(lines)


def mutants():
    sources = [path.read_text() for path in FILES]
    bare = [without_comments(text) for text in sources]
    for number in range(MUTANTS):
        rng = random.Random(number)
        text = rng.choice(sources) if number % 10 == 0 else rng.choice(bare)
        if number % 2 == 1:  # a few lines only, so that two mutations of one text are likely to interact
            lines = text.split("\n")
            begin = rng.randrange(len(lines))
            text = "\n".join(lines[begin:begin + rng.randrange(1, 12)])
        for _ in range(rng.randrange(1, 4)):
            text = mutate(text, rng)
        yield text


def read_ours(texts):
    """Returns the result of Trainyard's parser for each text, from one process."""
    blobs = [text.encode() for text in texts]
    done = subprocess.run([BIN / "tests" / "yaml_trees"],
                          input=b"".join(b"%d\n%s" % (len(blob), blob) for blob in blobs),
                          stdout=subprocess.PIPE, check=True, timeout=120)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(texts)
    return answers


def tree_of(node):
    if node is None:
        return {"text": "", "quoted": False}
    if isinstance(node, yaml.ScalarNode):
        return {"text": node.value, "quoted": node.style in ("'", '"')}
    if isinstance(node, yaml.SequenceNode):
        return {"list": [tree_of(item) for item in node.value]}
    return {"map": [[tree_of(key), tree_of(value)] for key, value in node.value]}


def read_theirs(text):
    try:
        return {"tree": tree_of(yaml.compose(text.encode(), Loader=yaml.SafeLoader))}
    except yaml.YAMLError as error:
        return {"error": str(error)}


def test_shipped_files_mean_the_same_to_pyyaml():
    texts = [path.read_text() for path in FILES]

    for path, text, ours in zip(FILES, texts, read_ours(texts)):
        assert ours == read_theirs(text), path


def test_mutated_files_that_trainyard_accepts_mean_the_same_to_pyyaml():
    texts = list(mutants())
    accepted = 0

    for number, (text, ours) in enumerate(zip(texts, read_ours(texts))):
        if "tree" not in ours:
            continue
        accepted += 1
        assert ours == read_theirs(text), f"mutant {number}:\n{text}"

    assert MUTANTS * 0.1 < accepted < MUTANTS * 0.9, f"{accepted} of {MUTANTS} mutants were accepted"


def test_texts_at_the_limits_of_our_subset_of_yaml_are_refused_or_mean_the_same_to_pyyaml():
    # Trainyard must refuse each text or return the same tree as PyYAML.
    texts = ["a: 'b\nc: d'\n", "a: b\n  c\n", "a: |\n  b\n", "a:\tb\n", "a: b\t\n", "\ta: b\n", "a: [b\n", "a: {b: c\n",
             "a: b: c\n", "- a\nb: c\n", "a: 1\n b: 2\n", "a: &x 1\nb: *x\n", "a: *x\n", "a: &x 1\nb: &x 2\n",
             "a: @b\n",
             "a: `b\n", "a: %b\n", "? a\n: b\n", "a: !!int 1\n", "%YAML 1.1\n---\na: b\n", "---\na: b\n...\n",
             "--- a\n",
             "a: b\n---\nc: d\n", "a: 'x' y\n", "a: \"\\q\"\n", "a: \"\\xzz\"\n", "a:\n- b\n- c\n", "a:\n  - b\n - c\n",
             "[a, b]: c\n", "{a: b, c}\n", "{a: b,}\n", "[a,,b]\n", "[a b, c d]\n", "a: -\n", "a: - b\n", "- - a\n",
             "- a: b\n  c: d\n", "a: [b, # x\n c]\n", "a: [b,#x\n c]\n", "a: b #c\n", "a: b#c\n", "a : b\n",
             "\"a\" : b\n",
             "\"a\":b\n", "{\"a\":b}\n", "{a:b}\n", "{a: }\n", "a: [?]\n", "a: [b?c]\n", "~: a\n", "null\n", "",
             "# only\n",
             "a\n", "\ufeffa: b\n", "a: \ufeffb\n", "a: b\r\nc: d\r\n", "a: b\rc: d\n", "a: b\x85c: d\n",
             "a: 'it''s'\n",
             "a: \"\\x41\\u00e9\\U0001F600\"\n", "a: [\n---\n]\n", "a: [b\n---\n", "a: b\n...\nc\n", "&a b: c\n",
             "a: &b\n  c: d\ne: *b\n", "a: &b\n- c\n", "[&a b, *a]\n", "a: &b [*b]\n", "k" * 1030 + ": a\n",
             "a: " + "[" * 70 + "]" * 70 + "\n"]

    for text, ours in zip(texts, read_ours(texts)):
        if "tree" in ours:
            assert ours == read_theirs(text), text
