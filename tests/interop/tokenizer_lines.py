"""What the tests of tokenizers share: texts of every kind, and our ids from the program tokenize_lines."""

import json
import random
import subprocess

import harness
import pytest

COMMON_TEXTS = 140  # this many texts of every_character hold all characters up to U+11FFF
PROGRAM = harness.BIN / "tests" / "tokenize_lines"
# Characters of every kind that the rules distinguish; fuzzed strings are made from them, and from any character.
PIECES = [
    "a", "b", "the", "The", "ing", "'s", "'S", "'\u017f", "'ll", "'VE", "'", " ", "  ", "   ", "\n", "\n\n",
    "\r\n", "\r", "\t", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "\x00", "\x7f", "\u200b", "\u200d",
    "\ufeff", "1", "23", "4567", "\u00b2", "\u00bd", "\u2167", "\u0663", ".", ",", "!?", "()", "{}", "=>", "_",
    "\u2014", "\u4f60\u597d", "\u3053", "\u00e9", "e\u0301", "\u0301", "a\u0323\u0302", "\u1e9b\u0323", "\u01d5",
    "\u212b", "\ufb01", "\uac00", "\u1112\u1161\u11ab", "\u0130", "\u03a3", "\u00df", "\U0001f600",
    "\U0001f468\u200d\U0001f469", "\U0001d400", "\U00010428", "\U0010ffff", "<s>", "</s>", "<0x41>", "<|end|>",
    "<pad>", "word", "\u2581", "\u0120", "%", "/",
]


def fuzzed(count, seed, pieces=PIECES):
    rng = random.Random(seed)

    def piece():
        if rng.random() < 0.85:
            return rng.choice(pieces)
        code = rng.randrange(0x10F800)
        return chr(code if code < 0xD800 else code + 0x800)

    return ["".join(piece() for _ in range(rng.randrange(1, 24))) for _ in range(count)]


def every_character():
    """Texts that each contain 512 different characters, next to letters and spaces; together they contain every
    character of Unicode."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for first in range(0, len(characters), 512):
        yield "".join(f"a{c} {c}b" for c in characters[first:first + 512])


def ours(path, texts, *options):
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run([PROGRAM, path, *map(str, options)], input=lines, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def check(got, expected, what):
    """Fails with the first difference. Not an assert: pytest would spend minutes on the difference of long lists."""
    if got != expected:
        at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
        begin = max(0, at - 4)
        pytest.fail(f"{what} differ at {at}: {got[begin:at + 6]!r}, expected {expected[begin:at + 6]!r}", pytrace=False)
