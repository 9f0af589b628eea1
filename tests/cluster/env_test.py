"""trainctl env, without and with a cluster, and on hosts of which a part is missing or broken."""

import json
import os
import shutil
import subprocess

import harness

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_")}


def env(*arguments, environment=None, program=harness.BIN / "trainctl", cwd=None):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=cwd,
                          env=environment or ENVIRONMENT)


def test_this_host_is_described(tmp_path):
    """The Python process that `trainctl env` starts must not import modules of the working directory."""
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\n")
    state = tmp_path / "state"

    done = env("env", "--json", environment={**ENVIRONMENT, "XDG_STATE_HOME": str(state)}, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["versions"]["torch"] == "2.11.0" and facts["versions"]["grpc"] and facts["versions"]["protobuf"]
    assert facts["cpu"]["cores_usable"] >= 1 and facts["memory"]["bytes"] > 0
    assert facts["trainer"]["vector_code"] in ("avx512", "avx2", "any")
    assert facts["trainer"]["product_kernels"] in ("mkl", "mkl_intel", "not decided")
    assert "lo" in [interface["name"] for interface in facts["network"]["interfaces"]]
    assert facts["network"]["data_address"] == "127.0.0.1"
    assert facts["limits"]["open_files"]["soft"] > 0
    assert facts["python"]["version"] and facts["folders"]["state"].startswith(str(state))
    assert not (tmp_path / "executed").exists()
    assert not state.exists(), "a report must not measure kernels for later jobs"


def test_the_text_has_the_same_facts_and_fits_any_width():
    done = env("env", environment={**ENVIRONMENT, "OMP_NUM_THREADS": "3", "TRAINYARD_TOKEN": "hidden"})

    assert done.returncode == 0, done.stderr
    for part in ("versions", "LibTorch 2.11.0", "product_kernels", "GPUs", "NCCL", "a daemon uses", "OMP_NUM_THREADS"):
        assert part in done.stdout
    assert "hidden" not in done.stdout


def test_a_host_without_a_trainer_and_python_is_described_with_warnings(tmp_path):
    program = tmp_path / "trainctl"
    shutil.copy(harness.BIN / "trainctl", program)

    done = env("env", "--json", environment={"PATH": str(tmp_path), "HOME": str(tmp_path)}, program=program)

    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert "trainyard-trainer" in facts["trainer"]["error"] and facts["versions"]["torch"] is None
    assert any("the trainer does not start" in warning for warning in facts["warnings"])
    assert "error" in facts["python"]


def test_the_hosts_of_a_cluster_are_listed_and_a_silent_coordinator_is_reported(cluster):
    cluster.start_coordinator()
    cluster.start_worker("h1")

    done = env("--coordinator", cluster.coordinator.address, "env", "--json")
    silent = env("--coordinator", f"127.0.0.1:{harness.free_port()}", "env", "--json")

    assert done.returncode == 0, done.stderr
    assert [host["name"] for host in json.loads(done.stdout)["hosts"]] == ["h1"]
    assert silent.returncode == 3
    assert json.loads(silent.stdout)["hosts_error"] and "trainctl:" in silent.stderr
