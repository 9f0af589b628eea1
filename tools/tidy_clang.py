"""The Clang pass of `./dev tidy`: Clang's thread-safety analysis and the checks of .clang-tidy.

It covers the source files that use annotated mutexes, themselves or in a header that they include. The flags come from
build/compile_commands.json. A file is checked again only if it, a header of ours that it includes, its flags, the
checks or the version of Clang have changed: build/tidy-cache/ holds the hashes of the files that passed.
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)
UNITY = re.compile(r'^#include "([^"]+\.cc)"', re.MULTILINE)
ANNOTATED = re.compile(r"\bABSL_GUARDED_BY\b|\bSteadyCondVar\b|\bMutexLock\b")
THREAD_SAFETY = ["-Wthread-safety", "-Werror=thread-safety"]


def commands(root, build):
    """(source, arguments for Clang) of each of our source files."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        sources = [entry["file"]]
        if pathlib.Path(entry["file"]).name.startswith("unity_"):  # CMake made it from several of our files
            sources = UNITY.findall(pathlib.Path(entry["file"]).read_text())
        sources = [name for name in sources if name.startswith(f"{root}/") and not name.startswith(f"{build}/")]
        arguments = iter(shlex.split(entry["command"]))
        kept = []
        for argument in arguments:
            # -include names a precompiled header of GCC, which Clang does not need: every file includes what it uses.
            if argument in ("-o", "-include"):
                next(arguments)
            elif argument.startswith(("-I", "-D", "-std=", "-f")):
                kept.append(argument)
            elif argument == "-isystem":
                kept += [argument, next(arguments)]
        for source in sources:
            yield os.path.relpath(source, root), kept


def check(root):
    build = root / "build"
    if not (build / "compile_commands.json").is_file():
        print("tidy: the Clang pass needs build/compile_commands.json, which is missing; run ./dev build first")
        return True
    for tool in ("clang++", "clang-tidy"):
        if shutil.which(tool) is None:
            print(f"tidy: {tool} is missing; run ./dev setup")
            return False
    cache = build / "tidy-cache"
    cache.mkdir(exist_ok=True)
    version = subprocess.run(["clang++", "--version"], capture_output=True, check=True).stdout

    @functools.cache
    def text(name):
        for folder in (root, build / "generated"):
            if (folder / name).is_file():
                return (folder / name).read_text(errors="replace")
        return ""

    def key(source, arguments):
        """The hash of everything that the result depends on, except headers of the system."""
        seen, waiting = set(), [source]
        while waiting:
            name = waiting.pop()
            if name not in seen and text(name):
                seen.add(name)
                waiting += INCLUDE.findall(text(name))
        parts = [version.decode(), text(".clang-tidy"), *THREAD_SAFETY, *arguments]
        return hashlib.sha256("\0".join(parts + [text(name) for name in sorted(seen)]).encode()).hexdigest()

    def is_annotated(source):
        return any(ANNOTATED.search(text(name)) for name in [source, *INCLUDE.findall(text(source))])

    def run(source, arguments):
        name = key(source, arguments)
        if (cache / name).exists():
            return ""
        done = subprocess.run(["clang-tidy", "--quiet", source, "--", *arguments, *THREAD_SAFETY], cwd=root,
                              capture_output=True, text=True)
        if done.returncode == 0:
            (cache / name).touch()
            return ""
        return done.stdout.strip() or done.stderr.strip()

    wanted = {source: arguments for source, arguments in commands(root, build) if is_annotated(source)}
    jobs = len(os.sched_getaffinity(0))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        findings = [found for found in pool.map(run, wanted, wanted.values()) if found]
    print("\n".join(findings), end="\n" if findings else "")
    return not findings
