"""Shards are safetensors files: the Python library and the C++ code read the files of each other."""

import subprocess
import sys
import tempfile

import numpy
from safetensors.numpy import load_file, save_file

INTEROP = sys.argv[1]


def run(*arguments):
    return subprocess.run([INTEROP, *arguments], check=True, capture_output=True, text=True).stdout


def python_reads_our_shard(folder):
    path = run("write", folder).strip()
    tensors = load_file(path + "/shard-00000.safetensors")
    assert set(tensors) == {
        role + name
        for role in ("", "optimizer.exp_avg.", "optimizer.exp_avg_sq.")
        for name in ("wte.weight", "ln_f.bias")
    }, sorted(tensors)
    expected = (100 + numpy.arange(24, dtype=numpy.float32)).reshape(4, 6)
    assert numpy.array_equal(tensors["wte.weight"], expected), tensors["wte.weight"]
    assert tensors["optimizer.exp_avg_sq.ln_f.bias"].dtype == numpy.float32


def we_read_pythons_file(folder):
    path = folder + "/python.safetensors"
    values = {
        "h.0.weight": numpy.arange(6, dtype=numpy.float64).reshape(2, 3),
        "scalar": numpy.array(7, dtype=numpy.int64),
        "empty": numpy.zeros((0, 3), dtype=numpy.float32),
        "flags": numpy.array([True, False, True]),
    }
    save_file(values, path, metadata={"note": "made by Python"})
    found = {line.split("\t")[0]: line.split("\t")[1:3] for line in run("read", path).splitlines()}
    assert found == {
        "h.0.weight": ["F64", "[2, 3]"],
        "scalar": ["I64", "[]"],
        "empty": ["F32", "[0, 3]"],
        "flags": ["BOOL", "[3]"],
    }, found


with tempfile.TemporaryDirectory() as folder:
    python_reads_our_shard(folder)
    we_read_pythons_file(folder)
print("ok")
