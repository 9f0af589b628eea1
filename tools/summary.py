#!/usr/bin/env python3
"""Adds up the JUnit files of one test run. The last line is 'N passed, N failed', with ', N skipped' if N > 0.

A test program that failed without reporting a failed case (it crashed, hung, or could not start) counts as one failure.
ctest reports it even if the program wrote nothing. The exit code is 0 only if a test ran and none failed.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


class Count:
    def __init__(self):
        self.passed = self.skipped = 0
        self.failed = []

    def add_case(self, case, name):
        if case.find("failure") is not None or case.find("error") is not None:
            self.failed.append(name)
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            self.skipped += 1
        else:
            self.passed += 1


def cases_of(path):
    """The test cases of one JUnit file; none if the file is missing or was truncated by a crash."""
    try:
        return list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []


def add_ctest(count, results):
    for program in [program for run in sorted(results.glob("ctest*.xml")) for program in cases_of(run)]:
        name = program.get("name")
        failed_before = len(count.failed)
        cases = cases_of(results / f"{name}.xml")
        for case in cases:
            # A case that is disabled or that the filter excludes counts as neither passed nor skipped.
            if case.get("status") == "notrun":
                continue
            if case.get("result") == "skipped":
                count.skipped += 1
                continue
            count.add_case(case, f"{name}: {case.get('classname')}.{case.get('name')}")
        program_failed = program.find("failure") is not None or program.get("status") in ("fail", "notrun")
        if program_failed and len(count.failed) == failed_before:
            count.failed.append(f"{name}: failed without reporting a failed case")
        elif not program_failed and not cases:
            count.passed += 1  # a program that is one test by itself


def add_passed_before(count, results):
    """Adds the tests that passed before `./dev test --all` was interrupted (tools/passed.py)."""
    try:
        lines = (results / "passed-before").read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        kind, name = line.split(" ", 2)[:2]
        cases = [case for case in cases_of(results / f"{name}.xml") if case.get("status") != "notrun"]
        if kind != "program" or not cases:
            count.passed += 1
            continue
        for case in cases:
            if case.get("result") == "skipped":
                count.skipped += 1
            else:
                count.passed += 1


def main():
    results = pathlib.Path(sys.argv[1])
    count = Count()
    add_passed_before(count, results)
    add_ctest(count, results)
    for case in cases_of(results / "pytest.xml"):
        count.add_case(case, f"pytest: {case.get('classname')}::{case.get('name')}")

    for name in count.failed:
        print(f"FAILED {name}")
    if not count.passed and not count.failed:
        print("No test ran: the filter matches no test, or the test programs are missing.")
    print(f"{count.passed} passed, {len(count.failed)} failed"
          + (f", {count.skipped} skipped" if count.skipped else ""))
    return 0 if count.passed and not count.failed else 1


if __name__ == "__main__":
    sys.exit(main())
