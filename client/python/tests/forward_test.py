"""What is written to W&B and MLflow, seen through stand-ins with the interface of both."""

import sys
import types

import pytest

from trainyard import schema
from trainyard.integrations import forward


def step(number, **values):
    return schema.Event(sequence=number, time_unix_ms=1000 * number, step=schema.StepReport(step=number, **values))


def evaluation(number, loss):
    return schema.Event(eval=schema.EvalReport(step=number, loss=loss, tokens=8))


class Job:
    id = "abcdefgh"

    def __init__(self, events, state="SUCCEEDED", command=False):
        self.state = state
        self._events = events
        self._job = schema.Job(job_id=self.id)
        self._job.spec.name = "small"
        self._job.spec.resources.ranks = 2
        if command:
            self._job.spec.command.argv.append("train.py")
            self._job.spec.command.env.append("KEY=secret")
            self._job.spec.on_end.webhook = "https://hooks.example/secret"

    def refresh(self):
        return self._job

    def watch(self):
        for event in self._events:
            if isinstance(event, Exception):
                raise event
            yield event


@pytest.fixture
def wandb(monkeypatch):
    record = types.SimpleNamespace(logged=[], axes={}, summary={}, ended=None)

    def finish(exit_code):
        record.ended = exit_code

    def define_metric(name, step_metric=None):
        record.axes[name] = step_metric

    def init(**options):
        record.options = options
        return types.SimpleNamespace(log=record.logged.append, finish=finish, summary=record.summary,
                                     define_metric=define_metric)

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    return record


def test_steps_evaluations_and_configuration_reach_wandb(wandb):
    job = Job([step(1, loss=2.0, lr=0.1), step(2, loss=1.0), evaluation(1, 1.5), schema.Event(notice={"text": "a"})])

    assert forward.to_wandb(job, mode="offline") == "SUCCEEDED"

    assert wandb.options == {"project": "trainyard", "name": "small", "mode": "offline",
                             "config": {"name": "small", "resources.ranks": 2}}
    assert wandb.axes == {"step": None, "train/*": "step", "eval/*": "step"}
    assert [(values["step"], values.get("train/loss")) for values in wandb.logged] == [(1, 2.0), (2, 1.0), (1, None)]
    assert wandb.logged[0]["train/lr"] == 0.1 and wandb.logged[2]["eval/loss"] == 1.5
    assert (wandb.ended, wandb.summary) == (0, {"state": "SUCCEEDED"})


def test_steps_that_a_restart_repeats_keep_their_numbers_in_wandb(wandb):
    forward.to_wandb(Job([step(1, loss=2.0), step(2, loss=1.0), step(1, loss=2.0), step(2, loss=1.0)]))

    assert [(values["step"], values["train/loss"]) for values in wandb.logged] == 2 * [(1, 2.0), (2, 1.0)]


def test_for_a_command_only_reported_values_are_written_and_no_environment_variables_and_webhook(wandb):
    forward.to_wandb(Job([step(1, loss=2.0)], command=True))

    assert wandb.logged == [{"step": 1, "train/loss": 2.0}]
    assert wandb.options["config"]["command.argv"] == ["train.py"] and "secret" not in str(wandb.options)


@pytest.mark.parametrize("events, state", [([RuntimeError("lost")], "SUCCEEDED"), ([], "FAILED")])
def test_a_wandb_run_is_marked_as_failed_if_the_job_or_the_connection_fails(wandb, events, state):
    job = Job(events, state)
    if events:
        with pytest.raises(RuntimeError):
            forward.to_wandb(job)
    else:
        forward.to_wandb(job)

    assert wandb.ended == 1


@pytest.fixture
def mlflow(monkeypatch):
    record = types.SimpleNamespace(metrics=[], params={}, status=None)

    class Client:
        def __init__(self, tracking_uri):
            record.uri = tracking_uri

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name):
            return "7"

        def create_run(self, experiment, run_name, tags):
            record.run = (experiment, run_name, tags)
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))

        def log_batch(self, run, metrics=(), params=()):
            record.metrics.extend(metrics)
            record.params.update(params)

        def set_terminated(self, run, status):
            record.status = status

    entities = types.SimpleNamespace(Metric=lambda *values: values, Param=lambda *values: values)
    for name, module in (("mlflow", types.SimpleNamespace()), ("mlflow.entities", entities),
                         ("mlflow.tracking", types.SimpleNamespace(MlflowClient=Client))):
        monkeypatch.setitem(sys.modules, name, module)
    return record


@pytest.mark.parametrize("state, status", [("SUCCEEDED", "FINISHED"), ("FAILED", "FAILED"), ("CANCELLED", "KILLED")])
def test_steps_evaluations_and_configuration_reach_mlflow(mlflow, state, status):
    job = Job([step(3, loss=2.0, lr=0.1), evaluation(3, 1.5)], state)

    assert forward.to_mlflow(job, tracking_uri="folder") == state

    assert (mlflow.uri, mlflow.run) == ("folder", ("7", "small", {"trainyard.job_id": "abcdefgh"}))
    assert mlflow.params == {"name": "small", "resources.ranks": "2"}
    assert ("train/loss", 2.0, 3000, 3) in mlflow.metrics and ("eval/loss", 1.5, 0, 3) in mlflow.metrics
    assert mlflow.status == status


@pytest.mark.parametrize("call, name", [(forward.to_wandb, "wandb"), (forward.to_mlflow, "mlflow")])
def test_a_missing_library_is_named(monkeypatch, call, name):
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(ImportError, match=f"pip install {name}"):
        call(Job([]))


@pytest.mark.parametrize("module, hidden", [("accelerate", ("accelerate",)),
                                            ("lightning", ("lightning", "pytorch_lightning"))])
def test_a_callback_names_the_library_that_it_needs(monkeypatch, module, hidden):
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"trainyard.integrations.{module}", raising=False)

    with pytest.raises(ImportError, match=f"pip install {module}"):
        __import__(f"trainyard.integrations.{module}")
