#!/usr/bin/env python3
"""Checks the rules of CONTRIBUTING.md that a program can check, in every tracked file of ours.

    tidy.py           all rules; then the Clang pass (tools/tidy_clang.py) if the build folder is configured
    tidy.py --quick   only the rules, in a few seconds; a test runs this

Prints one line per finding, "file:line: rule", and exits with 1 if there are any.
"""

import ast
import pathlib
import re
import subprocess
import sys

import tidy_clang
import tidy_tiers

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINE_LENGTH = 120
FUNCTION_LINES = 70
FILE_LINES = 500

CPP = {".cc", ".h"}
CODE = {".cc", ".h", ".c", ".proto", ".py", ".sh", ".cmake"}
TEXT = CODE | {".md", ".yaml", ".yml", ".txt", ".json", ""}
# Files with lines of limited length; tables in Markdown may be wider.
LIMITED = CODE | {".yaml", ".yml"}
LIMITED_NAMES = {"CMakeLists.txt", "dev", "Dockerfile"}
NOT_OURS = ("cmake/gloo-stub/", "bench/results/")

# Files that may wait in real time, each with a reason next to the call.
MAY_SLEEP = re.compile(r"^(common/(clock|files|listen)|client/|coordinator/main|tests/|"
                       r"worker/(shim|collectives|agent/(main|process_table)|trainer/run_folder)|"
                       r"checkpoint/fault_points)")
# spdlog requires a standard lock, and SteadyCondVar wraps a standard condition variable.
MAY_NAME_STD_MUTEX = re.compile(r"^common/(logging\.cc|steady_cond_var\.h)$")

# pattern, suffixes of the files that it applies to, files that are exempt (or None), what to do instead
BANNED = [
    (r"\bstd::string_view\b", CPP, None, "use absl::string_view: Debian's Abseil is built with its own"),
    (r"\bstd::format\b", CPP, None, "use absl::StrFormat or StrCat: GCC 12 has no std::format"),
    (r'#include "absl/log/', CPP, None, "use common/logging.h: Debian's Abseil has no log"),
    (r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b", CODE, None,
     "finish it, or write it down where work is planned"),
    # A machine without a GPU cannot run the tests of GPUs.
    (r"\bGTEST_" + r"SKIP\b", CPP, re.compile(r"^tests/gpu/"), "make the test able to run everywhere"),
    (r"\busing namespace std;", CPP, None, "name what is used"),
    (r"\bsleep_for\b|\bSleepFor\b|\busleep\(", CPP, MAY_SLEEP,
     "wait for a condition; pass the clock in as a parameter"),
    (r"\b(f?printf|f?puts|fputc|putchar|fwrite)\(|\bstd::(cout|cerr)\b", CPP,
     re.compile(r"^(?!client/)|^client/output\.cc$"),
     "use client/output.h: it notices writes that fail, and escapes foreign text"),
    (r"\bstd::(mutex|condition_variable\w*|lock_guard|unique_lock|scoped_lock)\b", CPP, MAY_NAME_STD_MUTEX,
     "use absl::Mutex with annotations, and SteadyCondVar for timed waits"),
    (r"\b(AwaitWith(Timeout|Deadline)|LockWhen\w*|WaitWith(Timeout|Deadline))\(", CPP, re.compile(r"^(tests|cmake)/"),
     "use SteadyCondVar: timed waits of Debian's Abseil use the wall clock"),
    (r"\babsl::CondVar\b|\b(Reader(Mutex)?Lock|TryLock)\b", CPP, re.compile(r"^cmake/|^common/steady_cond_var.h$"),
     "use MutexLock and SteadyCondVar: cmake/tsan_mutex.cc makes only these visible to ThreadSanitizer"),
]

# Phrases that a reader stumbles over, in comments and texts, and what to write instead. Words of protocols and of
# stored data (PublishedRecord, "told/<id>") are not affected.
PHRASES = [
    ("goes on", "continues, resumes"),
    ("go on", "continue, resume"),
    ("of use", "useful, valid"),
    ("of no use", "useless; or say why"),
    ("someone", "a user, a caller, a process"),
    ("besides", "in addition to"),
    ("whoever", "the caller, the user, any process that"),
    ("beside", "next to, compared with"),
    ("is told", "is informed, receives"),
    ("are told", "are informed, receive"),
    ("told apart", "distinguished"),
    ("mended", "fixed"),
    ("mend", "fix"),
    ("nobody", "no user, no process"),
    ("somebody", "a user, another process"),
    ("last words", "last output lines"),
    ("heard of", "received from"),
    ("for good", "permanently"),
    ("so-and-so", "a number"),
]
PHRASE = re.compile(r"(?<![\w-])(" + "|".join(phrase for phrase, _ in PHRASES) + r")(?![\w-])", re.IGNORECASE)
INSTEAD = dict(PHRASES)
# This list itself, and a text that is not ours.
MAY_USE_PHRASES = re.compile(r"^(tools/tidy\.py|LICENSE)")


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT,
                            capture_output=True, check=True).stdout
    for name in sorted(set(listed.decode().split("\0"))):
        path = ROOT / name
        if name and path.suffix in TEXT and path.is_file() and not name.startswith(NOT_OURS):
            yield name, path


def check_lines(name, path, text, lines):
    limited = path.suffix in LIMITED or path.name in LIMITED_NAMES
    is_code = path.suffix in CODE
    may_end_with_space = path.suffix == ".md"
    # Single lines are searched only for what occurs in the text: one search of the whole text is much faster than a
    # search of each line.
    has_phrases = not MAY_USE_PHRASES.match(name) and PHRASE.search(text)
    banned = [(pattern, instead) for pattern, suffixes, exempt, instead in BANNED
              if path.suffix in suffixes and not (exempt and exempt.match(name)) and re.search(pattern, text)]
    for number, line in enumerate(lines, 1):
        if limited and len(line) > LINE_LENGTH:
            yield number, f"{len(line)} characters; at most {LINE_LENGTH}"
        if line != line.rstrip() and not may_end_with_space:
            yield number, "white space at the end"
        if "\t" in line and is_code:
            yield number, "a tab; use spaces"
        if has_phrases and (found := PHRASE.search(line)):
            yield number, f"'{found[0]}': write {INSTEAD[found[0].lower()]}"
        for pattern, instead in banned:
            if found := re.search(pattern, line):
                yield number, f"{found[0]}: {instead}"


def check_header(lines):
    if not lines or not lines[0].startswith("//"):
        yield 1, "a header begins with a comment that says what it is"
    if "#pragma once" not in lines:
        yield 1, "#pragma once is missing"


TOKEN = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*(?:.|\n)*?\*/|'
                   r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|\n|[{};()=]|[^\s{};()=\"'/#]+|[/\"'#]", re.MULTILINE)
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")


def check_cpp_functions(text):
    """The length of every function at the level of a namespace or a class; lambdas count as part of their function."""
    line, statement, blocks = 1, [], []  # blocks: (kind, first line)
    for match in TOKEN.finditer(text):
        token = match.group()
        if token == "{":
            # After a statement with parentheses, `{` begins the body of a function, unless it initializes a variable.
            before = " ".join(statement)
            in_scope = not blocks or blocks[-1][0] == "scope"
            if in_scope and ")" in statement and "=" not in statement[statement.index(")"):]:
                kind = "function"
            else:
                kind = "scope" if SCOPE.search(before) and "=" not in statement else "other"
            blocks.append((kind, line))
            statement = []
        elif token == "}":
            if blocks:
                kind, start = blocks.pop()
                if kind == "function" and line - start - 1 > FUNCTION_LINES:
                    yield start, f"a function of {line - start - 1} lines; at most {FUNCTION_LINES}"
            statement = []
        elif token == ";":
            statement = []
        elif not token.startswith(("//", "/*", "\n")) and not token.lstrip().startswith("#"):
            statement.append(token)
        line += token.count("\n")


def check_python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno > FUNCTION_LINES:
            yield node.lineno, f"a function of {node.end_lineno - node.lineno} lines; at most {FUNCTION_LINES}"


def check(name, path):
    text = path.read_text(errors="replace")
    lines = text.splitlines()
    yield from check_lines(name, path, text, lines)
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end"
    if path.suffix in CPP | {".py", ".sh"} and len(lines) > FILE_LINES:
        yield 1, f"{len(lines)} lines; split it, {FILE_LINES} is the maximum"
    if path.suffix in CPP:
        yield from check_cpp_functions(text)
    if path.suffix == ".py":
        yield from check_python_functions(text)
    if path.suffix == ".h":
        yield from check_header(lines)


def main(arguments):
    if arguments not in ([], ["--quick"]):
        print("tidy: takes --quick or nothing", file=sys.stderr)
        return 2
    findings = [f"{name}:{number}: {what}" for name, path in tracked_files() for number, what in check(name, path)]
    findings += tidy_tiers.check(ROOT)
    for finding in findings:
        print(finding)
    failed = bool(findings)
    if not arguments:
        failed |= not tidy_clang.check(ROOT)
    if not failed:
        print("tidy: nothing found")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
