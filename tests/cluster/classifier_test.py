"""A classifier of labelled CSV rows has the losses of the same layers in PyTorch, on any layout."""

import harness
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

FEATURES, WIDTH, CLASSES, ROWS, STEPS, RATE = 20, 16, 10, 32, 12, 5e-3


def make_rows():
    torch.manual_seed(11)
    centers = torch.randn(CLASSES, FEATURES)
    classes = torch.arange(ROWS) % CLASSES
    return centers[classes] + 0.3 * torch.randn(ROWS, FEATURES), classes


def write_csv(path, features, classes):
    names = ",".join([*(f"x{i}" for i in range(FEATURES)), "kind"])
    lines = [",".join([*(repr(value) for value in row), str(label)])
             for row, label in zip(features.double().tolist(), classes.tolist())]
    path.write_text("\n".join([names, *lines]) + "\n")


def make_model():
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH),
                                torch.nn.ReLU(), torch.nn.Linear(WIDTH, CLASSES))
    return model, {"layers.0": model[0], "layers.1": model[2], "head": model[4]}


def losses_of_torch(model, features, classes):
    groups = [{"params": [w for w in model.parameters() if w.dim() >= 2], "weight_decay": 0.1},
              {"params": [w for w in model.parameters() if w.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(features), classes)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def classifier_job(folder, **changes):
    job = {
        "name": "classifier",
        "train": {
            "model": {"family": "mlp", "layers": 2, "width": WIDTH, "context": FEATURES, "vocabulary": CLASSES},
            "data": {"csv": [str(folder / "rows.csv")], "fields": {"label": "kind"}, "validation": 0},
            "batch": {"global": ROWS},
            "optimizer": {"lr": RATE},
            "schedule": {"kind": "constant"},
            "steps": STEPS,
        },
        "resources": {"ranks": 1, "threads_per_rank": 1, "device": "cpu"},
    }
    return harness.with_keys(job, changes)


def run(cluster, job):
    path = harness.write_job_file(cluster.folder / "job.yaml", job)
    return cluster.run_trainctl("run", path, "--json", timeout=120, expect=None)


@pytest.mark.parametrize("layout", [{}, {"resources__ranks": 2, "parallel__data": "fsdp"},
                                    {"resources__ranks": 2, "parallel__data": "zero2", "train__batch__micro": 8}],
                         ids=["one_rank", "fsdp", "zero2"])
def test_losses_of_a_classifier_are_those_of_pytorch(cluster, tmp_path, layout):
    features, classes = make_rows()
    write_csv(tmp_path / "rows.csv", features, classes)
    model, layers = make_model()
    weights = {f"{name}.{kind}": getattr(layer, kind).detach().clone()
               for name, layer in layers.items() for kind in ("weight", "bias")}
    save_file(weights, tmp_path / "weights.safetensors")
    theirs = losses_of_torch(model, features, classes)
    assert theirs[-1] < 0.9 * theirs[0], "the loss did not fall, so the comparison proves nothing"

    job = classifier_job(tmp_path, train__model__init_from=str(tmp_path / "weights.safetensors"), **layout)
    done = run(cluster, job)

    assert done.returncode == 0, done.stderr
    ours = harness.steps_of(harness.events(done.stdout))
    assert list(ours.values()) == pytest.approx(theirs, rel=1e-5)


def test_sample_and_export_refuse_a_classifier(cluster, tmp_path):
    write_csv(tmp_path / "rows.csv", *make_rows())
    done = run(cluster, classifier_job(tmp_path, checkpoint__dir=str(tmp_path / "run"), train__steps=2))
    assert done.returncode == 0, done.stderr

    sample = cluster.run_trainctl("sample", tmp_path / "run", expect=None)
    export = cluster.run_trainctl("checkpoint", "export", tmp_path / "run", tmp_path / "out", expect=None)

    assert sample.returncode != 0 and "has a classifier of numbers, not of text" in sample.stderr
    assert export.returncode != 0 and "has a classifier, a family that transformers does not have" in export.stderr


def test_all_bad_rows_are_listed(cluster, tmp_path):
    (tmp_path / "rows.csv").write_text("1,2,0\n1,x,0\n1,2,7\n")
    job = classifier_job(tmp_path, train__model__context=2, train__model__vocabulary=3, train__data__fields={})

    done = run(cluster, job)

    assert done.returncode != 0
    assert "rows.csv:2: column 2: expected a finite number, found 'x'" in done.stdout + done.stderr
    assert "rows.csv:3: column 3: expected a class from 0 to 2" in done.stdout + done.stderr


@pytest.mark.parametrize("changes, message", [
    ({"train__model__family": "gpt2", "train__model__heads": 2}, "train.data.csv: "),
    ({"train__data": {"text": ["/etc/passwd"]}}, "which needs csv"),
    ({"train__model__dropout": 0.1}, "train.model.dropout: "),
], ids=["text_model", "text_data", "dropout"])
def test_a_job_that_mixes_a_classifier_and_text_is_refused(cluster, tmp_path, changes, message):
    (tmp_path / "rows.csv").write_text("1,2,0\n")

    done = run(cluster, classifier_job(tmp_path, **changes))

    assert done.returncode == 2
    assert message in done.stderr
