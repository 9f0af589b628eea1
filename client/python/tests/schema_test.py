"""Jobs written as dictionaries, and the messages."""

import copy
import os
import pickle

import numpy
import pytest

import trainyard
from trainyard import schema


def test_a_dictionary_has_the_keys_and_names_of_a_job_file():
    spec = trainyard.job_spec({
        "name": "small",
        "train": {"model": {"family": "llama", "kv_heads": "auto"}, "precision": "bf16",
                  "batch": {"global": 8, "micro": 2}, "steps": 1e3, "data": {"text": ["corpus"]}},
        "resources": {"device": "cpu"},
    })

    assert spec.train.model.family == 2 and not spec.train.model.HasField("kv_heads")
    assert spec.train.batch.global_size == 8
    assert spec.train.steps == 1000
    assert spec.train.precision.type == 3
    assert list(spec.train.data.text) == [os.path.abspath("corpus")]


def test_all_problems_of_a_dictionary_are_listed():
    with pytest.raises(trainyard.errors.InvalidArgumentError) as refused:
        trainyard.job_spec({"nam": "x", "train": {"steps": 1.5, "model": {"family": "gpt3"}, "freeze": "wpe"},
                            "resources": {"ranks": -1}, "command": {"argv": [1]}, "checkpoint": 3})

    text = str(refused.value)
    assert "nam: is not a key; did you mean 'name'?" in text
    assert "train.steps: expected a whole number" in text
    assert "train.model.family: expected one of gpt2, llama" in text
    assert "train.freeze: expected a list" in text
    assert "resources.ranks: is out of range" in text
    assert "command.argv: has the wrong type" in text
    assert "checkpoint: expected a dictionary" in text


def test_values_of_any_type_are_read_or_reported_as_problems():
    with pytest.raises(trainyard.errors.InvalidArgumentError) as refused:
        trainyard.job_spec({"name": "\ud800", "resources": {"device": {"a": 1}},
                            "train": {"optimizer": {"lr": 10**400}}})

    text = str(refused.value)
    assert "name: is not valid Unicode" in text
    assert "resources.device: expected one of" in text
    assert "train.optimizer.lr: is out of range" in text
    assert trainyard.job_spec({"resources": {"ranks": numpy.int64(4)},
                               "train": {"optimizer": {"lr": numpy.float32(0.5)}}}).resources.ranks == 4


def test_messages_can_be_sent_to_other_processes():
    job = schema.Job(job_id="abc", spec=trainyard.job_spec({"name": "small", "train": {"steps": 3}}))
    answer = schema.message_of(schema.SERVICE.methods_by_name["Get"].output_type)(job_id="def")

    for message in (job, job.spec.train, answer):
        received = pickle.loads(pickle.dumps(message))
        assert received == message == copy.deepcopy(message) and type(received) is type(message)


def test_the_names_of_states_are_those_of_the_schema():
    enum = schema.SERVICE.methods_by_name["Get"].output_type.fields_by_name["state"].enum_type

    assert [value.name.removeprefix("JOB_STATE_") for value in enum.values] == list(schema.STATES)


def test_both_clients_have_every_call_of_the_service():
    for name in schema.SERVICE.methods_by_name:
        snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
        assert callable(getattr(trainyard.Client, snake)), name
        assert callable(getattr(trainyard.AsyncClient, snake)), name
