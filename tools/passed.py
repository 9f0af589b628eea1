#!/usr/bin/env python3
"""Records which tests have passed, so that an interrupted `./dev test --all` resumes where it stopped.

    passed.py open FILE BUILD_FOLDER [fresh]   keeps FILE if it belongs to this source and these programs, else empties
                                               it
    passed.py note FILE [PROGRAM]              prints ctest's output from standard input, and adds the tests that pass
                                               to FILE
    passed.py programs FILE                    prints a regular expression of the programs that have passed, or nothing
    passed.py cells FILE PROGRAM               prints a GoogleTest filter without the cases of PROGRAM that have passed

The first line of FILE is a hash of the source and the programs; each further line is `program NAME`, `cell PROGRAM
CASE` or `python TEST` (written by tests/conftest.py).
"""
import hashlib
import pathlib
import re
import subprocess
import sys

PROGRAM = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (\S+) \.*\s+Passed")
CASE = re.compile(r"^(?:\d+: )?\[       OK \] (\S+) \(\d+ ms\)")


def fingerprint(build):
    """Returns a hash of the commit, of changes since, and of the programs, without bench/results, which tests write."""
    digest = hashlib.sha256()
    for command in (["git", "rev-parse", "HEAD"], ["git", "diff", "HEAD", "--", ".", ":!bench/results"]):
        digest.update(subprocess.run(command, capture_output=True, check=False).stdout)
    untracked = subprocess.run(["git", "ls-files", "-o", "--exclude-standard", "-z"], capture_output=True, check=False)
    for name in sorted(filter(None, untracked.stdout.decode().split("\0"))):
        path = pathlib.Path(name)
        digest.update(name.encode() + (path.read_bytes() if path.is_file() else b""))
    for program in sorted(build.glob("bin/**/*")):
        if program.is_file():
            digest.update(f"{program.name} {program.stat().st_size} {program.stat().st_mtime_ns}\n".encode())
    return digest.hexdigest()


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []


def open_file(path, build, fresh):
    lines, current = lines_of(path), fingerprint(build)
    if not fresh and lines[:1] == [current] and len(lines) > 1:
        print(f"test: resumes an interrupted run, of which {len(lines) - 1} tests have passed (--fresh starts over)")
        return
    path.write_text(current + "\n")


def note(path, program):
    with path.open("a") as passed:
        for line in sys.stdin:
            sys.stdout.write(line)
            sys.stdout.flush()
            if program:
                match = CASE.match(line.rstrip())
                found = match and f"cell {program} {match.group(1)}"
            else:
                match = PROGRAM.match(line)
                found = match and f"program {match.group(1)}"
            if found:
                passed.write(found + "\n")
                passed.flush()


def main():
    verb, path, rest = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    lines = [line.split(" ") for line in lines_of(path)[1:]]
    if verb == "open":
        open_file(path, pathlib.Path(rest[0]), "fresh" in rest[1:])
    elif verb == "note":
        note(path, rest[0] if rest else "")
    elif verb == "programs":
        print("|".join(re.escape(line[1]) for line in lines if line[0] == "program"))
    elif verb == "cells":
        cells = [line[2] for line in lines if line[0] == "cell" and line[1] == rest[0]]
        print("-" + ":".join(cells) if cells else "")


if __name__ == "__main__":
    main()
