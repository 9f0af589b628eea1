"""`trainctl parity` as a user runs it."""

import json
import pathlib

import pytest

JOB = pathlib.Path(__file__).resolve().parents[2] / "configs" / "jobs" / "lab-tiny.yaml"
VARIANTS = ["one process", "reversed", "ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp, kept", "hsdp 2 x 2",
            "tensor 2", "tensor 2, sequence", "pipeline 2", "3d, zero1"]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [6, pytest.param(20, marks=pytest.mark.long)])
def test_lab_tiny_has_the_losses_of_one_process_under_every_strategy(cluster, steps):
    flags = [] if steps == 20 else ["--steps", steps]  # 20 is the default
    done = cluster.run_trainctl("parity", JOB, *flags, "--assert", "1e-6", "--json", timeout=900)

    report = json.loads(done.stdout)
    assert [variant["name"] for variant in report["variants"]] == VARIANTS
    for variant in report["variants"]:
        assert len(variant["losses"]) == steps, variant["name"]
        assert variant["losses"][-1] < variant["losses"][0], "the loss did not fall, so the comparison is worthless"
    assert 0 < report["worst"] <= 1e-6
    assert not list((cluster.folder / "trainyard-runs").glob("parity-*")), "run folders of the variants remained"


@pytest.mark.long
def test_losses_that_differ_by_more_than_assert_give_exit_code_1(cluster):
    done = cluster.run_trainctl("parity", JOB, "--steps", "4", "--assert", "1e-12", timeout=600, expect=1)

    assert "the losses differ by up to" in done.stderr and "more than --assert 1.0e-12" in done.stderr
    assert "(the noise floor: the same sums in another order)" in done.stdout
    for name in VARIANTS:
        assert name in done.stdout, name
