"""Copies the resolved configuration, the steps, the evaluations and the end of a job into a run of W&B or MLflow, while
the job runs or after it has ended.

    with trainyard.Client() as client:
        to_wandb(client.job("small"), mode="offline", dir="wandb-runs")
        to_mlflow(client.job("small"), tracking_uri="sqlite:///mlflow.db")

Both return the last state of the job when it has ended. The values of `command.env` and `on_end.webhook` are left out,
because they may contain passwords and tokens. If the copying fails, the run is marked as failed, and the job is not
affected. A cancelled job is KILLED in MLflow; W&B has no such state for finished runs: there, the run is marked as
failed, and its summary has the state of the job.
"""

from google.protobuf import json_format

_STEP = ("loss", "lr", "grad_norm", "tokens", "step_s")
_EVAL = ("loss", "tokens", "seconds")
_WANDB_STEP = "step"  # the horizontal axis
_PARAM_BYTES = 6000  # the limit of MLflow
_BATCH = 100         # the limit of MLflow for parameters in one call


def _configuration(spec):
    """The keys and values of a job: {"train.batch.micro": 2}. Lists are one value."""
    flat = {}

    def visit(prefix, value):
        if isinstance(value, dict):
            for key, nested in value.items():
                visit(f"{prefix}.{key}" if prefix else key, nested)
        else:
            flat[prefix] = value

    visit("", json_format.MessageToDict(spec, preserving_proto_field_name=True))
    for secret in ("command.env", "on_end.webhook"):
        flat.pop(secret, None)
    return flat


def _values(event, is_command):
    """(step, {"train/loss": 0.5}) of an event, or None. Values of 0 from a script are left out, because the script did
    not report them; only a loss may be 0. A step without a loss has none."""
    kind = event.WhichOneof("kind")
    if kind not in ("step", "eval"):
        return None
    report = getattr(event, kind)
    prefix, names = ("train", _STEP) if kind == "step" else ("eval", _EVAL)
    values = {f"{prefix}/{name}": getattr(report, name) for name in names}
    if is_command:
        values = {name: value for name, value in values.items() if value or name.endswith("/loss")}
    if kind == "step" and not report.HasField("loss"):
        del values["train/loss"]
    return report.step, values


def to_wandb(job, project="trainyard", **options):
    """`options`: those of wandb.init, for example mode="offline" and dir="wandb-runs"."""
    try:
        import wandb
    except ImportError as error:
        raise ImportError("to_wandb() needs W&B: pip install wandb") from error
    spec = job.refresh().spec
    run = wandb.init(project=project, config=_configuration(spec), **{"name": spec.name, **options})
    state = ""
    try:
        # W&B's own steps must not decrease, but a restart repeats steps, and an evaluation may arrive late.
        run.define_metric(_WANDB_STEP)
        for names in ("train/*", "eval/*"):
            run.define_metric(names, step_metric=_WANDB_STEP)
        for event in job.watch():
            found = _values(event, spec.HasField("command"))
            if found is not None:
                run.log({**found[1], _WANDB_STEP: found[0]})
        state = job.state
        run.summary["state"] = state
    finally:
        run.finish(exit_code=0 if state == "SUCCEEDED" else 1)
    return state


def to_mlflow(job, experiment="trainyard", tracking_uri=None):
    """`tracking_uri`: a server, database or folder, as MLflow accepts it; by default that of MLflow."""
    try:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise ImportError("to_mlflow() needs MLflow: pip install mlflow (or mlflow-skinny)") from error
    spec = job.refresh().spec
    client = MlflowClient(tracking_uri=tracking_uri)
    found = client.get_experiment_by_name(experiment)
    experiment_id = found.experiment_id if found else client.create_experiment(experiment)
    run = client.create_run(experiment_id, run_name=spec.name, tags={"trainyard.job_id": job.id}).info.run_id
    state = ""
    try:
        params = [Param(key, str(value)[:_PARAM_BYTES]) for key, value in _configuration(spec).items()]
        for first in range(0, len(params), _BATCH):
            client.log_batch(run, params=params[first:first + _BATCH])
        for event in job.watch():
            values = _values(event, spec.HasField("command"))
            if values is not None:
                client.log_batch(run, metrics=[Metric(name, value, event.time_unix_ms, values[0])
                                               for name, value in values[1].items()])
        state = job.state
    finally:
        ends = {"SUCCEEDED": "FINISHED", "CANCELLED": "KILLED"}
        client.set_terminated(run, status=ends.get(state, "FAILED"))
    return state
