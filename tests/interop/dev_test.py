"""The script ./dev: its messages when it cannot continue, and how it counts tests."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

import harness

VERBS = sorted(verb for script in (harness.ROOT / "dev", *(harness.ROOT / "tools").glob("*.sh"))
               for verb in re.findall(r"^verb_(\w+)\(\)", script.read_text(), re.MULTILINE))
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []


@pytest.fixture
def checkout():
    """A checkout with only the files that setup reads, writable by all users; nothing is installed in it."""
    top = pathlib.Path(tempfile.mkdtemp(prefix="trainyard-dev-test-"))  # other users cannot read pytest's own folders
    root = top / "checkout"
    root.mkdir()
    shutil.copy(harness.ROOT / "dev", root)
    for folder in ("tools", "requirements"):
        shutil.copytree(harness.ROOT / folder, root / folder)
    for path in [top, root, *root.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o055)
    root.chmod(0o777)
    yield root
    shutil.rmtree(top)


def fake_program(checkout, name, script):
    """Creates a program of that name and returns an environment with it first in PATH."""
    folder = checkout / "fakes"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def setup(checkout, prefix=(), env=None):
    return subprocess.run([*prefix, "./dev", "setup", "build"], cwd=checkout, env=env, capture_output=True, text=True,
                          timeout=120, stdin=subprocess.DEVNULL)


def test_setup_without_root_names_the_command_that_installs_missing_packages(checkout):
    (checkout / "requirements" / "apt.txt").write_text("trainyard-no-such-package\n")

    done = setup(checkout, AS_NOBODY)

    assert done.returncode == 1
    assert "sudo apt-get install" in done.stderr and "trainyard-no-such-package" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_setup_with_nothing_missing_needs_no_root_and_calls_no_apt(checkout):
    env = fake_program(checkout, "apt-get", "echo called >> /proc/self/cwd/apt-was-called; exit 1")
    env["PIP_INDEX_URL"] = "http://127.0.0.1:9/simple"
    env.pop("PIP_FIND_LINKS", None)
    env["PIP_RETRIES"] = "0"

    done = setup(checkout, AS_NOBODY, env)

    # Setup continued to the wheels, which it cannot download from this address.
    assert not (checkout / "apt-was-called").exists()
    assert done.returncode == 1
    assert "package index did not answer" in done.stderr, done.stderr
    assert "run ./dev setup again" in done.stderr


def test_setup_on_a_disk_that_is_too_small_fails_before_it_downloads_anything(checkout):
    env = fake_program(checkout, "df", "echo Avail; echo 512000")

    done = setup(checkout, AS_NOBODY, env)

    assert done.returncode == 1
    assert "needs about 3 GB" in done.stderr and "Free some space" in done.stderr
    assert not (checkout / ".deps" / "python").exists()


def test_setup_in_a_folder_of_another_user_fails_with_a_message(checkout):
    if not AS_NOBODY:
        checkout.chmod(0o555)
    else:
        checkout.chmod(0o755)

    done = setup(checkout, AS_NOBODY)

    assert done.returncode == 1
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize("arguments", [["frobnicate"], [], ["build", "--preset", "relaese"], ["setup", "everything"],
                                       ["test", "--quick"], ["sim", "one"], ["tidy", "--slow"]],
                         ids=lambda words: " ".join(words) or "nothing")
def test_wrong_usage_gives_exit_code_2_and_a_sentence(checkout, arguments):
    done = subprocess.run(["./dev", *arguments], cwd=checkout, capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stdout + done.stderr


def test_the_tree_follows_the_rules_that_tidy_checks():
    done = subprocess.run([harness.ROOT / "dev", "tidy", "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_usage_names_every_verb(checkout):
    done = subprocess.run(["./dev", "--help"], cwd=checkout, capture_output=True, text=True)

    assert done.returncode == 0
    assert sorted(set(re.findall(r"^  ([a-z]+) ", done.stdout, re.MULTILINE))) == VERBS


# The help of bench comes from Python programs, which need the wheels.
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "bench"])
def test_every_verb_except_bench_shows_its_help_before_anything_is_installed(checkout, verb):
    done = subprocess.run(["./dev", verb, "--help"], cwd=checkout, capture_output=True, text=True)

    assert done.returncode == 0
    assert f"./dev {verb}" in done.stdout


def summary(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.xml").write_text(text)
    return subprocess.run([sys.executable, harness.ROOT / "tools" / "summary.py", folder], capture_output=True,
                          text=True)


PROGRAM = '<testsuite><testcase name="a_test" status="{status}">{inside}</testcase></testsuite>'
CASES = """<testsuites><testsuite>
  <testcase classname="A" name="passes" status="run" result="completed"/>
  <testcase classname="A" name="filtered_out" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""


def test_the_last_line_adds_up_the_cases_of_ctest_and_pytest(tmp_path):
    pytest_file = ('<testsuites><testsuite><testcase classname="m" name="p"/>'
                   '<testcase classname="m" name="q"><failure/></testcase></testsuite></testsuites>')

    done = summary(tmp_path, ctest=PROGRAM.format(status="run", inside=""), a_test=CASES, pytest=pytest_file)

    assert done.stdout.splitlines()[-1] == "2 passed, 1 failed"
    assert done.returncode == 1


def test_a_program_that_crashed_counts_as_a_failure(tmp_path):
    done = summary(tmp_path, ctest=PROGRAM.format(status="fail", inside="<failure/>"))

    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"
    assert done.returncode == 1


def test_a_program_that_is_one_test_by_itself_counts_as_one(tmp_path):
    done = summary(tmp_path, ctest=PROGRAM.format(status="run", inside=""))

    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed"
    assert done.returncode == 0


def test_no_test_at_all_is_not_a_success(tmp_path):
    done = summary(tmp_path)

    assert "No test ran" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 passed, 0 failed"
    assert done.returncode == 1


def test_pins_are_exact_and_the_build_packages_are_a_subset_of_all():
    def pins(name):
        lines = (pathlib.Path(harness.ROOT) / "requirements" / name).read_text().splitlines()
        return {line for line in lines if line and not line.startswith("#")}

    assert all("==" in line for line in pins("full.txt"))
    assert pins("build.txt") <= pins("full.txt")


def test_installed_programs_run_from_another_folder(tmp_path):
    build = pathlib.Path(harness.BIN).parent
    done = subprocess.run(["cmake", "--install", build, "--prefix", tmp_path / "to"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    installed = sorted(path.name for path in (tmp_path / "to" / "bin").iterdir())

    version = subprocess.run([tmp_path / "to/bin/trainctl", "version"], capture_output=True, text=True)
    trainer = subprocess.run([tmp_path / "to/bin/trainyard-trainer", "--help"], capture_output=True, text=True)

    assert {"trainctl", "trainyard-coordinator", "trainyard-worker", "trainyard-shim",
            "trainyard-trainer"} <= set(installed)
    assert (version.returncode, trainer.returncode) == (0, 0), version.stderr + trainer.stderr
    assert (tmp_path / "to/share/trainyard/configs/worker.yaml").is_file()
    assert "Apache License" in (tmp_path / "to/share/doc/trainyard/LICENSE").read_text()
