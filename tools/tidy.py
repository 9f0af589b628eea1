#!/usr/bin/env python3
"""The rules of CONTRIBUTING.md that a program can check, over every tracked file of ours. One line a finding: file:line: rule.

Run by `./dev tidy` and as a test, so that style is settled here and not at review.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINE_LENGTH = 130
FUNCTION_LINES = 70
FILE_LINES = 500

CODE = {".cc", ".h", ".c", ".proto", ".py", ".sh", ".cmake"}
TEXT = CODE | {".md", ".yaml", ".yml", ".txt", ".json", ""}
NOT_OURS = ("cmake/gloo-stub/", "bench/results/")

# pattern, files it is about, what to do instead
BANNED = [
    (r"\bstd::string_view\b", {".cc", ".h"}, "use absl::string_view: Debian's Abseil is built with its own"),
    (r"\bstd::format\b", {".cc", ".h"}, "use absl::StrFormat or StrCat: GCC 12 has no std::format"),
    (r'#include "absl/log/', {".cc", ".h"}, "use common/logging.h: Debian's Abseil has no log"),
    (r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b", CODE, "finish it, or write it down where work is planned"),
    (r"\bGTEST_" + r"SKIP\b", {".cc", ".h"}, "make the test able to run everywhere"),
    (r"\busing namespace std;", {".cc", ".h"}, "name what is used"),
    (r"\bsleep_for\b|\bSleepFor\b|\busleep\(", {".cc", ".h"},
     "wait for a condition; let time be a clock that comes from outside"),
    (r"\b(f?printf|f?puts|fputc|putchar|fwrite)\(|\bstd::(cout|cerr)\b", {".cc", ".h"},
     "use client/output.h: it notices writes that fail, and escapes foreign text"),
]
# Where the last rule holds.
WRITES_THROUGH_OUTPUT = re.compile(r"^client/(?!output\.cc$)")
# Effects at the edge that do wait in real time, each for a reason that stands beside the call.
MAY_SLEEP = re.compile(r"^(common/(clock|files|listen)|client/|coordinator/main|tests/|"
                       r"worker/(shim|collectives|agent/(main|process_table)|trainer/run_folder)|checkpoint/fault_points)")


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT,
                            capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        path = ROOT / name
        if name and path.suffix in TEXT and path.is_file() and not name.startswith(NOT_OURS):
            yield name, path


def check_lines(name, suffix, lines):
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_LENGTH and suffix in CODE:
            yield number, f"{len(line)} characters; at most {LINE_LENGTH}"
        if line != line.rstrip() and suffix != ".md":
            yield number, "white space at the end"
        if "\t" in line and suffix in CODE:
            yield number, "a tab; use spaces"
        for pattern, suffixes, instead in BANNED:
            if suffix in suffixes and re.search(pattern, line):
                if "leep" in pattern and MAY_SLEEP.match(name):
                    continue
                if "SKIP" in pattern and name.startswith("tests/gpu/"):  # no machine grows one
                    continue
                if "puts" in pattern and not WRITES_THROUGH_OUTPUT.match(name):
                    continue
                yield number, f"{re.search(pattern, line)[0]}: {instead}"


def check_tiers(lines):
    """No file sees both torch and protobuf: the wheel carries an older protobuf's headers."""
    includes = [(number, match[1]) for number, line in enumerate(lines, 1)
                if (match := re.match(r'#include [<"]([^>"]+)[>"]', line))]
    torch = next((number for number, path in includes if path.startswith(("torch/", "ATen/", "c10/"))), None)
    proto = next((number for number, path in includes if path.endswith(".pb.h") or path.startswith("grpcpp/")), None)
    if torch and proto:
        yield max(torch, proto), "includes both torch and protobuf; part them by a plain header"


def check_header(lines):
    if not lines or not lines[0].startswith("//"):
        yield 1, "a header opens with what it is, in prose"
    if "#pragma once" not in lines:
        yield 1, "#pragma once is missing"


def check_functions(lines):
    """Length of the bodies that start at the left margin; good enough for code that clang-format has laid out."""
    start = None
    for number, line in enumerate(lines, 1):
        if re.match(r"^[A-Za-z].*\{$", line) and not re.match(r"^(namespace|extern|struct|class|enum|union)\b", line):
            start = number
        elif line.startswith("}") and start:
            if number - start - 1 > FUNCTION_LINES:
                yield start, f"a function of {number - start - 1} lines; at most {FUNCTION_LINES}"
            start = None


def check(name, path):
    text = path.read_text(errors="replace")
    lines = text.splitlines()
    yield from check_lines(name, path.suffix, lines)
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end"
    if path.suffix in (".cc", ".h"):
        yield from check_tiers(lines)
        yield from check_functions(lines)
        if len(lines) > FILE_LINES:
            yield 1, f"{len(lines)} lines; part it, {FILE_LINES} is the most"
    if path.suffix == ".h":
        yield from check_header(lines)


def main():
    findings = [f"{name}:{number}: {what}" for name, path in tracked_files() for number, what in check(name, path)]
    print("\n".join(findings) if findings else "tidy: nothing found")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
