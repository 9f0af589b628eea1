"""A checkpoint of a model that is divided among stages and tensor ranks: every other layout continues from it with the
same losses, and its export opens in transformers."""

import shutil

import pytest

import harness

transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

JOB = {
    "train__steps": 8,
    "train__batch": {"global": 12, "micro": 2},
    "train__precision": {"param": "fp64", "reduce": "fp64", "output": "fp64", "master": "fp64", "state": "fp64"},
    "checkpoint__every_steps": 4,
    "checkpoint__keep": 0,
}
LAYOUTS = {
    "tensor, pipeline and zero1": {"resources__ranks": 4, "parallel": {"data": "zero1", "tensor": 2, "pipeline": 2}},
    "fsdp on 3 ranks": {"resources__ranks": 3, "parallel": {"data": "fsdp"}},
    "interleaved": {"resources__ranks": 2,
                    "parallel": {"pipeline": {"stages": 2, "schedule": "interleaved"}, "recompute": "blocks"}},
    "one rank": {"resources__ranks": 1},
}


def run(cluster, folder, layout, *flags, family="gpt2"):
    """Runs the job in a layout and returns {step: loss}."""
    model = {"family": family, "layers": 4, "heads": 4, "width": 32, "context": 32}
    job = cluster.write_job(f"{folder.name}.yaml", checkpoint__dir=str(folder), train__model=model, **JOB,
                            **LAYOUTS[layout])
    cluster.run_trainctl("run", job, *flags, timeout=120)
    return harness.metrics_steps(folder)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", pytest.param("llama", marks=pytest.mark.long)])
def test_every_layout_continues_from_a_checkpoint_of_every_other(cluster, tmp_path, family):
    expected = run(cluster, tmp_path / "whole", "one rank", family=family)
    for before in ("tensor, pipeline and zero1", "fsdp on 3 ranks"):
        first = tmp_path / before.split()[0].strip(",")
        losses = run(cluster, first, before, family=family)
        assert losses == pytest.approx(expected, rel=1e-12)
        for number, after in enumerate(LAYOUTS):
            resumed = tmp_path / f"{first.name}-{number}"
            shutil.copytree(first, resumed)
            shutil.rmtree(resumed / "step-00000008")
            losses = run(cluster, resumed, after, "--resume", family=family)
            assert losses == pytest.approx(expected, rel=1e-12), (before, after)


def test_the_export_of_a_divided_model_opens_in_transformers(cluster, tmp_path):
    for name, layout in (("divided", "tensor, pipeline and zero1"), ("whole", "one rank")):
        run(cluster, tmp_path / name, layout)
        cluster.run_trainctl("checkpoint", "export", tmp_path / name, tmp_path / f"{name}-export")
    exports = [safetensors_torch.load_file(tmp_path / f"{name}-export" / "model.safetensors")
               for name in ("divided", "whole")]
    assert exports[0].keys() == exports[1].keys()
    for key, tensor in exports[0].items():
        assert (tensor - exports[1][key]).abs().max() <= 1e-12, key

    _, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "divided-export", output_loading_info=True)

    assert not info["missing_keys"] and not info["unexpected_keys"], info
