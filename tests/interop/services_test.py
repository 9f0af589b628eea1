"""docs/services.md is true: its shell commands run, and its table has every reason."""

import os
import re
import subprocess

import harness

DOCUMENT = harness.ROOT / "docs" / "services.md"


def test_the_shell_commands_run(one_host):
    (script,) = re.findall(r"^```sh run\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "TRAINYARD_COORDINATOR": one_host.coordinator.address,
                   "PATH": f"{harness.BIN}:{os.environ['PATH']}"}

    done = subprocess.run(["bash", "-c", f"set -e\n{script}"], cwd=one_host.folder, env=environment, timeout=60,
                          capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_has_every_reason():
    reasons = set(re.findall(r'k\w+\[\] = "([A-Z_]+)"', (harness.ROOT / "common" / "error_details.h").read_text()))
    documented = set(re.findall(r"`([A-Z]+_[A-Z_]+|OVERLOADED)`", DOCUMENT.read_text()))

    assert reasons <= documented, reasons - documented
