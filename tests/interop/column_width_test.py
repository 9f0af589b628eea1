"""The widths of characters in trainctl's tables are those of Unicode, of which Python has a copy."""

import pathlib
import re
import unicodedata

import pytest

TABLES = pathlib.Path(__file__).parents[2] / "client" / "column_width.cc"
UNICODE = "14.0.0"  # as in TABLES
# Reserved code points in these blocks are wide, too (EastAsianWidth.txt).
IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FFFD), (0x30000, 0x3FFFD))
# The vowels and final consonants of Hangul.
PARTS_OF_SYLLABLES = ((0x1160, 0x11FF), (0xD7B0, 0xD7C6), (0xD7CB, 0xD7FB))
SOFT_HYPHEN = 0xAD


def is_in(ranges, code):
    return any(first <= code <= last for first, last in ranges)


def columns_by_unicode(code):
    category = unicodedata.category(chr(code))
    if code != SOFT_HYPHEN and (category in ("Mn", "Me", "Cf", "Zl", "Zp") or is_in(PARTS_OF_SYLLABLES, code)):
        return 0
    is_wide = category != "Cn" and unicodedata.east_asian_width(chr(code)) in "WF"
    return 2 if is_wide or is_in(IDEOGRAPHS, code) else 1


@pytest.mark.skipif(unicodedata.unidata_version != UNICODE, reason="this Python has another version of Unicode")
def test_the_tables_of_widths_are_those_of_unicode():
    columns = {}
    for name, width in (("kNoColumns", 0), ("kTwoColumns", 2)):
        (table,) = re.findall(rf"constexpr Range {name}\[\] = {{(.*?)}};", TABLES.read_text(), re.DOTALL)
        ranges = [(int(first, 16), int(last, 16)) for first, last in re.findall(r"{0x(\w+), 0x(\w+)}", table)]
        assert ranges == sorted(ranges)
        for first, last in ranges:
            columns.update(dict.fromkeys(range(first, last + 1), width))

    # The planes in between have no characters, and the last ones are for private use.
    codes = [*range(0x80, 0x40000), *range(0xE0000, 0xE1000)]
    assert set(columns) <= set(codes)
    wrong = [f"U+{code:04X}" for code in codes if columns.get(code, 1) != columns_by_unicode(code)]

    assert not wrong, f"{len(wrong)} code points, the first are {wrong[:5]}"
