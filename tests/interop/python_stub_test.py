"""A Python program with a stub generated from the same proto files submits a job and watches it until it ends."""

import grpc
import pytest


def test_a_python_stub_submits_a_job_and_watches_it(one_host, stubs, tmp_path):
    job = stubs.job
    spec = job.JobSpec(
        name="from-python",
        train=job.Train(
            model=job.Model(layers=1, heads=2, width=16, context=16),
            data=job.Data(text=[str(one_host.text)], validation=0.1),
            batch=job.Batch(global_size=4, micro=2),
            optimizer=job.Optimizer(lr=1e-2),
            steps=15,
        ),
        resources=job.Resources(ranks=2, threads_per_rank=1),
        checkpoint=job.Checkpoint(dir=str(tmp_path / "run")),
    )

    answer = one_host.jobs.Submit(stubs.service.SubmitRequest(spec=spec), timeout=60)
    found = one_host.jobs.FindJobs(stubs.service.FindJobsRequest(text=answer.job_id[:6]), timeout=60)
    assert [(one.job_id, one.name) for one in found.jobs] == [(answer.job_id, "from-python")]
    events = list(one_host.jobs.Watch(stubs.service.WatchRequest(job_id=answer.job_id), timeout=60))

    assert [event.step.step for event in events if event.HasField("step")] == list(range(1, 16))
    assert events[-1].state.state == stubs.service.JOB_STATE_SUCCEEDED
    assert [event.checkpoint.step for event in events if event.HasField("checkpoint")] == [15]
    assert answer.resolved.train.model.vocabulary == 256
    assert {decision.key for decision in answer.decisions} >= {"train.model.vocabulary"}


def test_the_api_refuses_a_wrong_spec_with_every_problem(one_host, stubs):
    spec = stubs.job.JobSpec(name="Not A Name")
    spec.train.model.heads = 3

    with pytest.raises(grpc.RpcError) as refused:
        one_host.jobs.Submit(stubs.service.SubmitRequest(spec=spec), timeout=60)

    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "name" in refused.value.details() and "steps" in refused.value.details()


def test_a_refusal_names_each_field_by_its_path_in_the_request(one_host, stubs):
    spec = stubs.job.JobSpec(name="refused", train=stubs.job.Train(data=stubs.job.Data(text=["corpus"])))
    spec.train.batch.global_size = 0

    with pytest.raises(grpc.RpcError) as refused:
        one_host.jobs.Submit(stubs.service.SubmitRequest(spec=spec, default_run_root="/runs"), timeout=60)

    trailing = dict(refused.value.trailing_metadata())
    status = stubs.status.Status.FromString(trailing["grpc-status-details-bin"])
    assert (status.code, status.message) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], refused.value.details())
    details = stubs.error_details.BadRequest()
    assert status.details[0].Unpack(details)
    violations = {violation.field: violation.description for violation in details.field_violations}
    assert violations["spec.train.batch.global_size"] == "must be from 1 to 16777216, found 0"
    assert violations["spec.train.data.text"] == "must be an absolute path, found 'corpus'"
    assert "spec.train.steps" in violations
