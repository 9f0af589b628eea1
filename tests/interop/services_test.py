"""docs/services.md is true: its shell commands and the Python example run, and its table has every reason."""

import os
import re
import subprocess
import sys

import grpc_tools
from grpc_tools import protoc

import harness

DOCUMENT = harness.ROOT / "docs" / "services.md"
EXAMPLE = harness.ROOT / "client" / "python" / "examples" / "service.py"


def test_the_shell_commands_run(one_host):
    (script,) = re.findall(r"^```sh run\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "TRAINYARD_COORDINATOR": one_host.coordinator.address,
                   "PATH": f"{harness.BIN}:{os.environ['PATH']}"}

    done = subprocess.run(["bash", "-c", f"set -e\n{script}"], cwd=one_host.folder, env=environment, timeout=60,
                          capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_python_example_runs(one_host, tmp_path):
    package = harness.ROOT / "client" / "python" / "src" / "trainyard"
    site = tmp_path / "site" / "trainyard"
    site.mkdir(parents=True)
    for path in package.rglob("*.py"):
        (site / path.relative_to(package)).parent.mkdir(exist_ok=True)
        (site / path.relative_to(package)).symlink_to(path)
    proto = harness.ROOT / "proto"
    code = protoc.main(["protoc", f"-I{proto}", f"-I{os.path.dirname(grpc_tools.__file__)}/_proto", "--include_imports",
                        f"--descriptor_set_out={site / 'schema.binpb'}", "trainyard/v1/service.proto",
                        "trainyard/v1/trainer.proto", "google/rpc/status.proto", "google/rpc/error_details.proto"])
    assert code == 0
    environment = {**os.environ, "TRAINYARD_COORDINATOR": one_host.coordinator.address, "PYTHONPATH": str(site.parent)}

    done = subprocess.run([sys.executable, EXAMPLE], env=environment, cwd=tmp_path, timeout=60, capture_output=True,
                          text=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "submitted once: True", "JOB_ID_IN_USE serviceorder17", "INVALID_REQUEST ['spec.name']",
        "SUCCEEDED", "VERSION_MISMATCH True", "['serviceorder17']", "['h1']"], done.stdout


def test_the_table_has_every_reason():
    reasons = set(re.findall(r'k\w+\[\] = "([A-Z_]+)"', (harness.ROOT / "common" / "error_details.h").read_text()))
    documented = set(re.findall(r"`([A-Z]+_[A-Z_]+|OVERLOADED)`", DOCUMENT.read_text()))

    assert reasons <= documented, reasons - documented
