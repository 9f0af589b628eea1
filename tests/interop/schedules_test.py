"""The learning rate of every step equals that of transformers: the formulas for many sizes, and metrics.jsonl of runs
with accumulation on one and two ranks."""

import itertools
import json
import subprocess

import harness
import pytest
import torch
import transformers

TOLERANCE = 1e-14
# (kind, name in transformers, min_ratio, decay, arguments of transformers)
SCHEDULES = [
    ("linear", "linear", 0, "cosine", {}),
    ("cosine", "cosine", 0, "cosine", {}),
    ("constant", "constant_with_warmup", 0, "cosine", {}),
    ("inverse_sqrt", "inverse_sqrt", 0, "cosine", {}),
    *(("cosine", "cosine_with_min_lr", ratio, "cosine", {"min_lr_rate": ratio}) for ratio in (0.1, 0.5)),
    *(("wsd", "warmup_stable_decay", ratio, decay, {"min_lr_ratio": ratio, "decay_type": theirs})
      for ratio, (decay, theirs) in itertools.product((0, 0.1), (("cosine", "cosine"), ("linear", "linear"),
                                                                 ("sqrt", "1-sqrt")))),
]


def theirs(name, steps, warmup, arguments, lr=1.0):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = transformers.get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps,
                                           scheduler_specific_kwargs=arguments or None)
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.slow
def test_the_formulas_equal_those_of_transformers():
    lines, expected, names = [], [], []
    for (kind, name, ratio, decay, arguments), steps in itertools.product(SCHEDULES, (1, 2, 7, 100, 1000)):
        for warmup in sorted({0, 1, steps // 10, steps // 3, steps - 1, steps}):
            room = steps - warmup
            for decay_steps in sorted({0, 1, room // 2, room} if kind == "wsd" else {0}):
                if decay_steps > room:
                    continue
                timescale = warmup or 10_000
                lines.append(f"{kind} transformers {steps} {warmup} {ratio} {decay_steps} {decay} {timescale}\n")
                names.append(lines[-1])
                extra = {"num_decay_steps": decay_steps} if kind == "wsd" else {}
                expected.append(theirs(name, steps, warmup, {**arguments, **extra}))

    printed = subprocess.run([harness.BIN / "tests" / "schedule_rates"], input="".join(lines), capture_output=True,
                             text=True, check=True, timeout=120).stdout.splitlines()

    assert len(printed) == len(lines) > 300
    for name, line, rates in zip(names, printed, expected):
        ours = [float(rate) for rate in line.split()]
        assert len(ours) == len(rates)
        for step, (own, other) in enumerate(zip(ours, rates), 1):
            assert abs(own - other) <= TOLERANCE, f"{name.strip()}: step {step}: {own} instead of {other}"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("schedule, name, arguments", [
    ({"kind": "linear", "warmup_ratio": 0.25}, "linear", {}),
    ({"kind": "wsd", "warmup_steps": 2, "decay": "sqrt"}, "warmup_stable_decay",
     {"num_decay_steps": 2, "decay_type": "1-sqrt"}),
])
def test_the_steps_of_a_run_have_the_rates_of_transformers(cluster, tmp_path, ranks, schedule, name, arguments):
    """Each step accumulates four micro-batches, and the schedule counts steps of the optimizer, not micro-batches."""
    run = tmp_path / "run"
    job = cluster.write_job(train__steps=11, train__batch={"global": 8, "micro": 2 if ranks == 1 else 1},
                            train__optimizer={"lr": 5e-5}, train__schedule={"formula": "transformers", **schedule},
                            resources__ranks=ranks, checkpoint__dir=str(run))

    cluster.run_trainctl("run", job, timeout=120)

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ours = [line["lr"] for line in lines if line["event"] == "step"]
    warmup = 3 if "warmup_ratio" in schedule else 2  # the ceiling of 11 x 0.25
    assert ours == pytest.approx(theirs(name, 11, warmup, arguments, lr=5e-5), rel=1e-14, abs=1e-20)
