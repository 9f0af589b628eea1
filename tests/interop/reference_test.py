"""The documents that tools/reference.py writes are up to date, and programs print the messages that documents quote."""

import re
import subprocess
import sys

import pytest

import harness

REFERENCE = harness.ROOT / "docs" / "reference"
SOURCES = ("client", "common", "coordinator", "worker", "spec", "checkpoint", "tokenizers", "models", "foreign",
           "planner")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    subprocess.run([sys.executable, harness.ROOT / "tools" / "reference.py", folder, harness.BIN / "trainctl",
                    harness.ROOT / "proto"], check=True)
    return folder


def test_the_reference_has_exactly_the_pages_that_are_written(written):
    assert sorted(path.name for path in REFERENCE.iterdir()) == sorted(path.name for path in written.iterdir())


@pytest.mark.parametrize("page", ["api.md", "daemons.md", "job.md", "machines.md", "trainctl.md"])
def test_each_page_of_the_reference_is_up_to_date(page, written):
    assert (REFERENCE / page).read_text() == (written / page).read_text(), f"docs/reference/{page}: run ./dev docs"


def test_the_reference_explains_every_key_command_and_call(written):
    job = (written / "job.md").read_text()
    verbs = re.findall(r"^## trainctl (\S+)", (written / "trainctl.md").read_text(), re.M)
    calls = re.findall(r"^  rpc (\w+)\(", (harness.ROOT / "proto/trainyard/v1/service.proto").read_text(), re.M)

    assert "| `train.batch.global` | whole number; 1 to 16777216 | The number of sequences in one optimizer step" in job
    assert "| `recovery.max_restarts` |" in job and "Default 10." in job
    assert {"run", "submit", "watch", "why", "checkpoint", "launch"} <= set(verbs)
    assert re.findall(r"^## (\w+)", (written / "api.md").read_text().split("# Types")[0], re.M) == calls
    assert [line for line in job.splitlines() if line.startswith("| `") and line.endswith("|  |")] == []


def source_strings():
    """The string literals of the sources, with neighbouring ones joined as the compiler does."""
    for folder in SOURCES:
        for path in (harness.ROOT / folder).rglob("*.cc"):
            text = re.sub(r'"\s*\n\s*"', "", path.read_text())
            yield from re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)


def test_each_message_of_the_troubleshooting_page_is_printed_by_a_program():
    page = (harness.ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^\| `(.+?)` \|", page, re.M)
    strings = "\n".join(text.replace('\\"', '"').replace("\\n", "\n") for text in source_strings())

    assert len(messages) > 15
    assert [message for message in messages if message.strip() not in strings] == []
