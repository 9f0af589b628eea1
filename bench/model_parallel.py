#!/usr/bin/env python3
"""./dev bench model-parallel compares tensor and pipeline parallelism with our DDP on the same cores, with
torch.distributed.tensor.parallel and torch.distributed.pipelining, and a pipeline's idle share with the simulated one.

Both sides of a row have the same model, text, tokens per step, processes and threads. The sides alternate, in the
opposite order in every round, and a figure is the median of the rounds' ratios. PyTorch is tuned
(peers/model_parallel_torch.py), and MKL uses the kernels of Intel's CPUs (peers/mkl_lever.c).
"""

import dataclasses

import pipeline_idle
import run
import sides

LAB_10M, TINY = sides.LAB_10M, sides.TINY
STAGES, SCHEDULE = 2, "1f1b"
MICRO, FEW, MANY = 2, 8, 32  # sequences in a micro-batch, and micro-batches in a step


def with_micro_batches(shape, number):
    """The shape with a step of that many micro-batches over all ranks."""
    return dataclasses.replace(shape, batch=MICRO * number // shape.ranks)


LAB_FEW, TINY_FEW = with_micro_batches(LAB_10M, FEW), with_micro_batches(TINY, FEW)
LAB_MANY = dataclasses.replace(with_micro_batches(LAB_10M, MANY), warmup=1, steps=4)  # its steps are four times longer
PIPELINE = {"parallel.pipeline.stages": STAGES, "parallel.pipeline.schedule": SCHEDULE, "train.batch.micro": MICRO}


def tensor_keys(shape):
    return {"parallel.tensor": 2, "train.batch.micro": shape.batch * shape.ranks}  # one pass for the whole step


# Our runs by the name of their measurement: the shape, and further keys of the job file.
OURS = {
    "ddp": (LAB_10M, {}),
    "tensor": (LAB_10M, tensor_keys(LAB_10M)),
    "tiny-tensor": (TINY, tensor_keys(TINY)),
    "ddp-few": (LAB_FEW, {"train.batch.micro": MICRO}),
    "pipeline-few": (LAB_FEW, PIPELINE),
    "tiny-pipeline": (TINY_FEW, PIPELINE),
    "ddp-many": (LAB_MANY, {"train.batch.micro": MICRO}),
    "pipeline-many": (LAB_MANY, PIPELINE),
}
# PyTorch's runs: the shape, the mode of model_parallel_torch.py, and the micro-batches of a step.
PEERS = {
    "tensor-torch": (LAB_10M, "tensor", 1),
    "tiny-tensor-torch": (TINY, "tensor", 1),
    "pipeline-torch": (LAB_FEW, SCHEDULE, FEW),
    "tiny-pipeline-torch": (TINY_FEW, SCHEDULE, FEW),
}
# Of each ratio of speeds: name, description, bar (the limit that it must meet), aim (the better value that we want),
# and the two measurements.
RATIOS = [
    ("tensor-ddp", "lab-10m fp32, tensor 2 ÷ our DDP on the same 2 cores", 0.88, 0.95, "tensor", "ddp"),
    ("tensor", "lab-10m, tensor 2 ÷ torch.distributed.tensor.parallel tuned", 1.2, 1.4, "tensor", "tensor-torch"),
    ("tiny-tensor", "tiny, tensor 2 ÷ torch.distributed.tensor.parallel tuned", 4, 8, "tiny-tensor",
     "tiny-tensor-torch"),
    ("pipeline-8-ddp", f"lab-10m, pipeline 2, {FEW} micro-batches of {MICRO} ÷ our DDP with the same", 0.82, 0.87,
     "pipeline-few", "ddp-few"),
    ("pipeline-32-ddp", f"lab-10m, pipeline 2, {MANY} micro-batches of {MICRO} ÷ our DDP with the same", 0.90, 0.95,
     "pipeline-many", "ddp-many"),
    ("pipeline", f"lab-10m, pipeline 2, {FEW} micro-batches of {MICRO} ÷ torch Schedule1F1B tuned", 1.15, 1.3,
     "pipeline-few", "pipeline-torch"),
    ("tiny-pipeline", f"tiny, pipeline 2, {FEW} micro-batches of {MICRO} ÷ torch Schedule1F1B tuned", 3, 6,
     "tiny-pipeline", "tiny-pipeline-torch"),
]
LOSS_TOLERANCE = 1e-3  # between our layouts: many times the effect of rounding over a few steps


def compare_speeds(ours, other):
    def compare(measured):
        left, right = measured[ours], measured[other]
        if other in OURS and abs(left.last_loss - right.last_loss) > LOSS_TOLERANCE * right.last_loss:
            raise sides.MeasurementFailed(f"{ours} ended with the loss {left.last_loss}, {other} with "
                                          f"{right.last_loss}: they have not trained the same model")
        return left.tokens_per_s, right.tokens_per_s, left.tokens_per_s / right.tokens_per_s

    return compare


def compare_idle(measured):
    idle = measured["idle"].extra
    own, simulated = 100 * idle.share, 100 * pipeline_idle.simulated_share(idle, SCHEDULE, FEW)
    return own, simulated, own - simulated


def make_rows():
    rows = [run.Row(name, what, "ratio", "higher", bar, aim, compare_speeds(ours, other), (ours, other))
            for name, what, bar, aim, ours, other in RATIOS]
    what = f"idle share of pipeline 2 with {FEW} micro-batches in %: measured - simulated"
    return [*rows, run.Row("idle", what, "points", "lower", 3, 1, compare_idle, ("idle",))]


def make_measures(folder):
    def ours(shape, keys):
        return lambda: sides.run_ours(shape, folder, keys)

    def peer(shape, mode, micro_batches):
        return lambda: sides.run_torch("model_parallel_torch.py", shape.ranks, shape, folder, tuned=True, mode=mode,
                                       batch=shape.batch * shape.ranks, micro_batches=micro_batches)

    def idle():
        return sides.run_ours(LAB_FEW, folder, {**PIPELINE, "diagnostics.events": True},
                              lambda path: pipeline_idle.read(path, STAGES, LAB_FEW.warmup + 1, FEW))

    measures = {name: ours(*settings) for name, settings in OURS.items()}
    measures.update({name: peer(*settings) for name, settings in PEERS.items()})
    # The sides of a row run at about the same time.
    order = ["ddp", "tensor", "tensor-torch", "ddp-few", "pipeline-few", "pipeline-torch", "ddp-many", "pipeline-many",
             "tiny-tensor", "tiny-tensor-torch", "tiny-pipeline", "tiny-pipeline-torch"]
    return {**{name: measures[name] for name in order}, "idle": idle}


def main():
    run.run_pairs("./dev bench model-parallel", __doc__, make_rows(), make_measures)


if __name__ == "__main__":
    main()
