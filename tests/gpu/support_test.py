"""Tests of the GPU plugin that need no GPU: which libraries libtrainyard_cuda.so may depend on, and the error of a host
whose driver lists a GPU that CUDA cannot use."""

import pathlib
import re
import subprocess

import harness
import pytest

HERE = pathlib.Path(__file__).resolve().parent
PLUGIN = harness.BIN / "libtrainyard_cuda.so"
# The libraries of the wheels, the compiler and Debian's Abseil; no library of a CUDA toolkit or driver of this machine.
MAY_NEED = re.compile(
    r"lib(torch_cuda|torch_cpu|c10|c10_cuda|cudart|nccl|stdc\+\+|gcc_s|c|m|absl_\w+|ld-linux-x86-64)\.so")


def test_the_library_depends_only_on_the_wheels():
    listed = subprocess.run(["readelf", "--dynamic", "--wide", PLUGIN], capture_output=True, text=True,
                            check=True).stdout

    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", listed)

    assert any(name.startswith("libtorch_cuda.so") for name in needed), listed
    assert [name for name in needed if not MAY_NEED.match(name)] == []


def test_the_library_exports_its_two_functions():
    listed = subprocess.run(["nm", "--dynamic", "--defined-only", PLUGIN], capture_output=True, text=True,
                            check=True).stdout

    names = {line.split()[-1] for line in listed.splitlines()}

    assert {"trainyard_cuda_plugin", "trainyard_cuda_plugin_abi"} <= names
    # No C++ symbols of ours, because the trainer has its own; instances of standard templates may contain our names.
    assert not [name for name in names if re.match(r"_Z(N|NK|TVN|TIN|TSN)9trainyard", name)]


@pytest.fixture
def fake_gpu(cluster):
    """A cluster with one host, whose driver lists a GPU that does not exist."""
    if subprocess.run(["sh", "-c", "nvidia-smi -L | grep -q ^GPU"], capture_output=True).returncode == 0:
        pytest.skip("this machine has a GPU that works")
    library = cluster.folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", HERE / "fake_nvml.c", "-o", library], check=True)
    cluster.start_coordinator()
    cluster.start_worker("h1", slots=2, prefix=["env", f"LD_LIBRARY_PATH={cluster.folder}"])
    return cluster


def test_a_job_with_an_automatic_device_computes_on_the_cpu_where_cuda_cannot_be_used(fake_gpu):
    ended = fake_gpu.wait_for_end(fake_gpu.submit(resources__device="auto", resources__ranks=1, train__steps=2))

    assert ended.state_name == "SUCCEEDED", ended.job.reason
    decision, = [each for each in ended.job.decisions if each.key == "resources.device"]
    assert decision.value == "cpu"
    assert "trainers cannot use the GPUs of h1: " in decision.reason


def test_a_gpu_that_cuda_cannot_use_fails_the_job_with_what_is_missing(fake_gpu):
    cluster = fake_gpu

    ended = cluster.wait_for_end(cluster.submit(resources__device="cuda", resources__ranks=1))

    assert ended.state_name == "FAILED"
    for text in ("no GPU can be used on this machine", "NVIDIA driver", "resources.device to cpu", "cuda on host h1"):
        assert text in ended.job.reason, ended.job.reason
