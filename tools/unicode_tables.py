#!/usr/bin/env python3
"""Writes tokenizers/unicode_tables.inc: what the pinned Python library `tokenizers` knows about every character.

The library mixes several versions of Unicode: its regular expressions, its normalization and its character predicates
have tables of their own. So the tables are not those of one version; each is found by asking the library. Run this with
the Python of .deps after a change of the library's version in requirements/; tests/interop/tokenizers_test.py compares
every character again.

    .deps/python/bin/python tools/unicode_tables.py
"""

import pathlib
import textwrap
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[1]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
EVERY = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
TEXT = "".join(EVERY)


def members(pre_tokenizer):
    """Returns the characters that remain when the pre-tokenizer splits TEXT, which contains every character once."""
    return {ord(c) for _, (first, last) in pre_tokenizer.pre_tokenize_str(TEXT) for c in TEXT[first:last]}


def in_class(pattern):
    return members(pre_tokenizers.Split(Regex(f"{pattern}+"), "removed", invert=True))


def pieces(pre_tokenizer, text):
    return len(pre_tokenizer.pre_tokenize_str(text))


def ranges(codes):
    out = []
    for code in sorted(codes):
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def literal(text):
    """A C++ string literal. A byte that does not print has three octal digits, so a digit after it is separate."""
    return '"' + "".join(chr(b) if 32 < b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()) + '"'


def table(kind, name, rows):
    body = textwrap.fill(", ".join("{" + ",".join(map(str, row)) + "}" for row in rows), 118,
                         break_long_words=False, break_on_hyphens=False)
    return f"constexpr {kind} {name}[] = {{\n{body}}};\n"


def categories():
    of = {}
    for index, name in enumerate(CATEGORIES):
        if name not in ("Cs", "Cn"):
            of.update(dict.fromkeys(in_class(rf"\p{{{name}}}"), index))
    runs, last = [], None
    for code in range(0x110000):
        index = of.get(code, CATEGORIES.index("Cs" if 0xD800 <= code < 0xE000 else "Cn"))
        if index != last:
            runs.append((code, index))
        last = index
    return runs


def combining():
    """Returns ranges of characters with their combining classes, for the characters that NFD of the library reorders. A
    newer Unicode (that of Python) may give other characters a class, too, but the library treats them as class 0."""
    nfd, runs = normalizers.NFD(), []
    for code, c in ((ord(c), c) for c in EVERY):
        value = unicodedata.combining(c)
        if not value:
            continue
        # A text with two marks in the wrong order: U+0301 has class 230, and U+0327 has class 202.
        text = f"a\u0301{c}" if value < 230 else f"a{c}\u0327"
        if nfd.normalize_str(text) == text:
            continue
        if runs and runs[-1][1] == code - 1 and runs[-1][2] == value:
            runs[-1][1] = code
        else:
            runs.append([code, code, value])
    return runs


def compositions():
    nfc, out = normalizers.NFC(), []
    for c in EVERY:
        parts = unicodedata.decomposition(c).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (chr(int(part, 16)) for part in parts)
            if nfc.normalize_str(first + second) == c and nfc.normalize_str(c) == c:
                out.append((ord(first), ord(second), ord(c)))
    return sorted(out)


def changes(normalizer, unless=None):
    """Returns each character that `normalizer` changes, with the result. Leaves out those for which the normalizer
    `unless` has the same result."""
    out = []
    for c in EVERY:
        if 0xAC00 <= ord(c) < 0xAC00 + 11172:
            continue  # Hangul syllables decompose by arithmetic
        changed = normalizer.normalize_str(c)
        if changed != c and (unless is None or changed != unless.normalize_str(c)):
            out.append((ord(c), literal(changed)))
    return out


def main():
    space = in_class(r"\s")
    assert space == set(map(ord, EVERY)) - members(pre_tokenizers.WhitespaceSplit()), "two kinds of space"
    word = {ord(c) for c in EVERY if ord(c) not in space and pieces(pre_tokenizers.Whitespace(), "a" + c) == 1}
    digits = {ord(c) for c in EVERY if pieces(pre_tokenizers.Digits(), "a" + c) == 2}
    punctuation = {ord(c) for c in EVERY if pieces(pre_tokenizers.Punctuation(), "a" + c) == 2}
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    parts = [
        f"// Made by tools/unicode_tables.py from tokenizers {tokenizers.__version__}; do not edit.\n",
        table("CategoryRun", "kCategoryRuns", categories()),
        table("CodeRange", "kSpaces", ranges(space)),
        table("CodeRange", "kWordCharacters", ranges(word)),
        table("CodeRange", "kPatternWordCharacters", ranges(in_class(r"\w"))),
        table("CodeRange", "kNumericCharacters", ranges(digits)),
        table("CodeRange", "kPunctuationCharacters", ranges(punctuation)),
        table("CombiningRange", "kCombining", combining()),
        table("Composition", "kCompositions", compositions()),
        table("Change", "kLowerCase", changes(normalizers.Lowercase())),
        table("Change", "kCanonical", changes(nfd)),
        table("Change", "kCompatibility", changes(nfkd, unless=nfd)),
    ]
    assert in_class(r"\d") == in_class(r"\p{Nd}"), "two kinds of digit"
    (ROOT / "tokenizers" / "unicode_tables.inc").write_text("".join(parts))


if __name__ == "__main__":
    main()
