"""Every data-parallel strategy as a user runs it: the shipped job files, and a run that resumes under another
strategy."""

import pathlib

import harness
import processes
import pytest

JOBS = pathlib.Path(__file__).resolve().parents[2] / "configs" / "jobs"
STRATEGIES = ["zero1", "fsdp", "hsdp", "offload", *(pytest.param(name, marks=pytest.mark.long)
                                                    for name in ("zero2", "zero3", "recompute"))]
STEPS = 2


def losses_of(cluster, *arguments, timeout=240):
    done = cluster.run_trainctl("run", *arguments, "--json", timeout=timeout)
    lines = harness.events(done.stdout)
    assert (lines[-1]["event"], lines[-1]["state"]) == ("done", "SUCCEEDED")
    return harness.steps_of(lines)


def losses_of_shipped(cluster, strategy):
    flags = ["--set", f"train.steps={STEPS}", "--set", f"train.data.text=[{cluster.text}]"]
    flags += ["--set", "resources.threads_per_rank=1"]
    return losses_of(cluster, JOBS / f"{strategy}.yaml", *flags)


@pytest.fixture(scope="module")
def losses_of_ddp(tmp_path_factory, stubs):
    """The losses of ddp.yaml, which the other strategies must reproduce."""
    processes.start_reaper()
    cluster = harness.Cluster(tmp_path_factory.mktemp("ddp"), stubs)
    try:
        return losses_of_shipped(cluster, "ddp")
    finally:
        cluster.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shipped_job_trains_with_the_losses_of_ddp(cluster, losses_of_ddp, strategy):
    losses = losses_of_shipped(cluster, strategy)

    assert sorted(losses) == sorted(losses_of_ddp) == list(range(1, STEPS + 1))
    for step, loss in losses.items():
        assert loss == pytest.approx(losses_of_ddp[step], rel=1e-6), f"step {step}"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_shipped_16_bit_job_trains(cluster, precision):
    flags = ["--set", f"train.steps={STEPS}", "--set", f"train.data.text=[{cluster.text}]"]

    losses = losses_of(cluster, JOBS / f"{precision}.yaml", *flags, "--set", "resources.threads_per_rank=1")

    assert sorted(losses) == list(range(1, STEPS + 1))
    assert losses[1] == pytest.approx(5.55, abs=0.5), "not the loss of an untrained model"


# (strategy, number of ranks, sizes of mesh axes) of each run; every run resumes from the checkpoint of the one before.
LAYOUTS = [("ddp", 2, {}), ("fsdp", 3, {}), ("hsdp", 4, {"shard": 2}), ("zero2", 2, {}), ("zero1", 4, {}),
           ("zero3", 1, {})]


def test_each_strategy_resumes_from_the_checkpoint_of_another(cluster):
    keys = {"train__batch": {"global": 12, "micro": 1}, "train__schedule": {"kind": "constant"}}
    keys["train__evaluate"] = {"every_steps": 2, "batches": 3}
    uninterrupted = losses_of(cluster, cluster.write_job(name="uninterrupted", train__steps=2 * len(LAYOUTS), **keys))

    found = {}
    for i, (strategy, ranks, sizes) in enumerate(LAYOUTS):
        job = cluster.write_job(train__steps=2 * (i + 1), parallel={"data": strategy, **sizes}, resources__ranks=ranks,
                                **keys)
        found.update(losses_of(cluster, job, *(["--resume"] if i > 0 else [])))

    assert sorted(found) == sorted(uninterrupted)
    for step, loss in uninterrupted.items():
        assert found[step] == pytest.approx(loss, rel=1e-5), f"step {step}"


def test_an_uneven_division_is_a_warning_with_the_idle_share_and_gives_the_same_losses(cluster):
    keys = {"train__batch": {"global": 8, "micro": 1}, "train__steps": 4}
    even = losses_of(cluster, cluster.write_job(resources__ranks=2, **keys))

    job = cluster.write_job(resources__ranks=3, parallel={"data": "fsdp"}, **keys)
    validated = cluster.run_trainctl("validate", job)
    uneven = losses_of(cluster, job)

    expected = "8 micro-batches leave the 3 ranks idle for 11 % of a step's computation"
    assert expected in validated.stdout + validated.stderr
    for step, loss in even.items():
        assert uneven[step] == pytest.approx(loss, rel=1e-5), f"step {step}"


def test_steps_report_memory_by_kind(cluster):
    job = cluster.write_job(train__steps=3, resources__ranks=1)

    done = cluster.run_trainctl("run", job, "--json")

    steps = [line for line in harness.events(done.stdout) if line["event"] == "step"]
    memory = steps[0]["memory"]
    assert set(memory) == {"parameters", "gradients", "optimizer", "buffers", "activations", "host", "reserved",
                           "snapshots"}
    # Two moments per parameter, of the same type.
    assert memory["optimizer"]["bytes"] == pytest.approx(2 * memory["parameters"]["bytes"], rel=0.1)
    assert memory["activations"]["peak_bytes"] > memory["activations"]["bytes"]


def test_mesh_sizes_whose_product_is_not_the_number_of_ranks_are_refused_with_the_product(cluster):
    job = cluster.write_job(parallel={"data": "hsdp", "shard": 2, "replicate": 3}, resources__ranks=4)

    refused = cluster.run_trainctl("validate", job, expect=None)

    assert refused.returncode != 0
    assert "shard 2 x replicate 3 = 6, but the job has 4 ranks" in refused.stderr
