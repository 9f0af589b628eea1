#!/usr/bin/env python3
"""Runs `cmake --build` and shows the progress on one line: the last step, the number of steps, and the time left.

    build_progress.py BUILD_FOLDER JOBS [TARGET...]

./dev build calls this only if its output is a terminal. The estimate adds up the expected times of the steps that ninja
is about to run: the time of the same step in the last build or, in a first build, a typical time for its kind. The sum
is scaled by the speed of this machine, which is measured while steps end.
"""
import os
import re
import shutil
import subprocess
import sys
import time

# Typical seconds on one core of a step that this build folder has not run yet, by the first pattern that matches its
# description.
KINDS = (
    (re.compile(r"\.gch$"), 10.0),
    (re.compile(r"Unity/unity_\d+_cxx\.cxx\.o$"), 12.0),
    (re.compile(r"/(tests|bench)/.*\.o$|^Building CXX object tests/"), 8.0),
    (re.compile(r"\.o$"), 4.0),
    (re.compile(r"^Linking"), 0.6),
)
OTHER_STEPS = 0.2
STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")


def read_log(folder):
    """Returns the seconds of the last run of each step, by the file that the step writes."""
    seconds = {}
    try:
        with open(os.path.join(folder, ".ninja_log"), encoding="utf-8") as log:
            for line in log:
                fields = line.rstrip("\n").split("\t")
                if len(fields) == 5:
                    seconds[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    except (OSError, ValueError):
        pass
    return seconds


def expected_seconds(description, log):
    output = description.rsplit(" ", 1)[-1]
    if output in log:
        return max(0.05, log[output])
    for pattern, seconds in KINDS:
        if pattern.search(description):
            return seconds
    return OTHER_STEPS


def describe(description):
    """'Building CXX object client/CMakeFiles/client.dir/Unity/unity_3_cxx.cxx.o' -> 'compiled a part of client'."""
    found = re.search(r"CMakeFiles/([^/]+)\.dir/", description)
    if description.startswith("Building") and found:
        if description.endswith(".gch"):
            return "precompiled the headers of " + found.group(1).removeprefix("precompiled_")
        name = os.path.basename(description).removesuffix(".o")
        return "compiled a part of " + found.group(1) if name.startswith("unity_") else f"compiled {name}"
    if description.startswith("Linking"):
        return "linked " + os.path.basename(description.rsplit(" ", 1)[-1])
    return description


def duration(seconds):
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def planned_steps(folder, targets):
    """Returns the descriptions of the steps that a build would run now."""
    run = subprocess.run(["ninja", "-C", folder, "-n", *targets], capture_output=True, text=True,
                         env={**os.environ, "NINJA_STATUS": "[%f/%t] "})
    return [match.group(3) for match in map(STATUS.match, run.stdout.splitlines()) if match]


class StatusLine:
    """One line of the terminal that is overwritten each time."""

    def __init__(self):
        self.shown = False

    def show(self, text):
        columns = shutil.get_terminal_size().columns
        sys.stdout.write("\r\033[K" + text[: columns - 1])
        sys.stdout.flush()
        self.shown = True

    def clear(self):
        if self.shown:
            sys.stdout.write("\r\033[K")
            sys.stdout.flush()
        self.shown = False


def main():
    folder, jobs, targets = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    log = read_log(folder)
    left = sum(expected_seconds(step, log) for step in planned_steps(folder, targets))
    command = ["cmake", "--build", folder, "--parallel", str(jobs)]
    if targets:
        command += ["--target", *targets]
    begin, done, line = time.monotonic(), 0.0, StatusLine()
    build = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                             env={**os.environ, "NINJA_STATUS": "[%f/%t] "})
    steps = 0
    for text in build.stdout:
        match = STATUS.match(text.rstrip("\n"))
        if not match:
            line.clear()
            sys.stdout.write(text)
            continue
        steps, total, description = int(match.group(1)), int(match.group(2)), match.group(3)
        seconds = expected_seconds(description, log)
        done, left = done + seconds, max(0.0, left - seconds)
        # Real time per expected time. The constants keep the ratio near 1 / jobs until some steps have ended.
        elapsed = time.monotonic() - begin
        pace = (elapsed + 20 / jobs) / (done + 20)
        line.show(f"build: step {steps} of {total}, about {duration(left * pace)} left; {describe(description)}")
    code = build.wait()
    line.clear()
    if code == 0 and steps:
        print(f"build: {steps} steps in {duration(time.monotonic() - begin)}")
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print()
        sys.exit(130)
