"""JobService in JSON over HTTP: the same answers and errors as over gRPC, streams that resume, roles, and records of
who did what."""

import base64
import concurrent.futures
import json
import os
import re
import sqlite3
import subprocess
import sys
import time

import google.protobuf.json_format as json_format
import grpc
import pytest

import harness
import http_client
import tokens


def start_with_lasting_token(cluster, *flags, port=None):
    """A coordinator with the same token after a restart. The token is in the file in which all programs look for it."""
    port = port or harness.free_port()
    tokens.folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    return cluster.start_coordinator("--token-file", tokens.path_of(f"127.0.0.1:{port}"), *flags, port=port)


@pytest.fixture
def lasting(cluster):
    start_with_lasting_token(cluster)
    return cluster


def unary_methods(stubs):
    service = stubs.service.DESCRIPTOR.services_by_name["JobService"]
    return {method.name: method for method in service.methods if not method.server_streaming}


def message_class(stubs, descriptor):
    return getattr(stubs.service, descriptor.name)


def without_times(message):
    """The JSON of the message without what differs between two calls or two jobs."""
    text = json_format.MessageToDict(message, preserving_proto_field_name=True)

    def clean(node):
        if isinstance(node, dict):
            return {key: clean(value) for key, value in node.items()
                    if not key.endswith(("unix_ms", "wait_s"))
                    and key not in ("goodput", "spec_digest", "resource_version")}
        return [clean(item) for item in node] if isinstance(node, list) else node

    return clean(text)


def over_grpc(cluster, method, request):
    """(code, answer or google.rpc.Status) of a call."""
    try:
        return 0, getattr(cluster.jobs, method)(request, timeout=60)
    except grpc.RpcError as error:
        status = cluster.stubs.status.Status(code=error.code().value[0], message=error.details())
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                status.ParseFromString(value)
        return error.code().value[0], status


def over_http(cluster, method, request, answer_class):
    answer = http_client.post(cluster, method.name, json_format.MessageToJson(request))
    if answer.status == 200:
        return 0, json_format.Parse(answer.body, answer_class()), answer
    status = json_format.Parse(answer.body, cluster.stubs.status.Status())
    return status.code, status, answer


# {gRPC code: HTTP status}
HTTP_CODES = {3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 12: 501, 14: 503, 16: 401}


def test_every_unary_method_answers_over_http_as_over_grpc(lasting):
    stubs, service = lasting.stubs, lasting.stubs.service
    first, second = "job00000grpc", "job00000http"
    spec = lasting.get(lasting.submit()).job.spec
    spec.name = "same"

    def submit(job):
        spec.checkpoint.dir = f"{lasting.folder}/runs/{job}"
        return service.SubmitRequest(spec=spec, job_id=job)

    # Called in this order, each with the job for gRPC and the job for HTTP. Methods that are not listed here are called
    # with an empty request.
    requests = {
        "Submit": [submit, lambda job: service.SubmitRequest(job_id="NOT AN ID")],
        "Get": [lambda job: service.GetRequest(job_id=job), lambda job: service.GetRequest(job_id="nosuchjob")],
        "List": [lambda job: service.ListRequest(page_size=1), lambda job: service.ListRequest(page_token="x")],
        "Pause": [lambda job: service.PauseRequest(job_id=job, reason="for the night")],
        "Save": [lambda job: service.SaveRequest(job_id=job)],
        "Restart": [lambda job: service.RestartRequest(job_id=job)],
        "Resume": [lambda job: service.ResumeRequest(job_id=job), lambda job: service.ResumeRequest(job_id=job)],
        "FindJobs": [lambda job: service.FindJobsRequest(text=job)],
        "ListEvents": [lambda job: service.ListEventsRequest(job_id=job),
                       lambda job: service.ListEventsRequest(limit=99999)],
        "SetHost": [lambda job: service.SetHostRequest(name="nohost", action="ACTION_CORDON")],
        "Cancel": [lambda job: service.CancelRequest(job_id=job, reason="enough")],
    }
    methods = unary_methods(stubs)
    compared = 0
    for name in [*requests, *(set(methods) - set(requests))]:
        answer_class = message_class(stubs, methods[name].output_type)
        for make in requests.get(name, [lambda job: message_class(stubs, methods[name].input_type)()]):
            code, expected = over_grpc(lasting, name, make(first))
            http_code, found, answer = over_http(lasting, methods[name], make(second), answer_class)
            assert http_code == code, f"{name}: {answer.body} instead of {expected}"
            assert answer.status == (200 if code == 0 else HTTP_CODES[code]), name
            text = json.dumps(without_times(found)).replace(second, first)
            wanted = json.dumps(without_times(expected)).replace(second, first)
            if name != "ListEvents" or code != 0:  # its events name the callers, who differ
                assert json.loads(text) == json.loads(wanted), name
            if code == 3:
                assert found.details, f"{name}: the INVALID_ARGUMENT has no details"
            compared += 1
    assert compared >= len(methods) + 4


def test_bodies_that_are_no_requests_are_refused_and_deadlines_are_kept(lasting):
    for body in ("{", "[]", '"text"', '{"no_such_field": 1}', '{"job_id": 5}', "{" * 5000, b'{"job_id": "\xff\xfe"}'):
        answer = http_client.post(lasting, "Get", body)
        assert answer.status == 400 and answer.json["code"] == 3, (body, answer.body)
    assert http_client.post(lasting, "GetServerInfo", "").json["version"]
    assert http_client.post(lasting, "Get", {"jobId": "nosuchjob"}).status == 404, "jobId was not read as job_id"
    late = http_client.post(lasting, "List", {}, Grpc_Timeout="1n")
    assert (late.status, late.json["code"]) == (504, 4)
    assert http_client.post(lasting, "List", {}, Grpc_Timeout="soon").status == 400
    assert http_client.post(lasting, "Watch", {"job_id": "nosuchjob"}).status == 404, "the error came in the stream"
    large = http_client.post(lasting, "Get", "x" * (5 << 20))
    assert large.status == 413 and lasting.coordinator.alive()
    methods = http_client.get(lasting, "/api/v1/JobService").json["methods"]
    assert {method["name"] for method in methods} >= {"Submit", "Watch", "Logs"}
    assert http_client.get(lasting, "/api/v1/openapi.json").json["openapi"].startswith("3.")
    assert http_client.get(lasting, "/api/v1/openapi.json", token="").status == 401


@pytest.mark.parametrize("body", [
    b"[" * 4_000_000, b'{"spec":' * 400_000, b'{"spec": {"name": "x\xff"}}', b'{"spec": {"name": "x\\ud800"}}',
    b"null", b"{} {}", b'{"job_id": 1e400}',
], ids=["deep list", "deep object", "not UTF-8", "half of a surrogate pair", "null", "two bodies", "large number"])
def test_a_hostile_body_is_refused_with_its_reason(lasting, body):
    refused = http_client.post(lasting, "Submit", body)

    assert refused.status == 400 and "the body is no SubmitRequest in JSON" in refused.json["message"]
    assert lasting.coordinator.alive() and http_client.post(lasting, "List", {}).status == 200


def test_watch_and_logs_are_lines_of_json(cluster):
    start_with_lasting_token(cluster)
    cluster.start_worker("h1", slots=2)
    job = cluster.submit(train__steps=5)
    cluster.wait_for_end(job)

    watched = list(http_client.lines(cluster, "Watch", {"job_id": job}))
    printed = list(http_client.lines(cluster, "Logs", {"job_id": job}))
    tail = list(http_client.lines(cluster, "Logs", {"job_id": job, "ranks": [0], "tail_lines": 1}))

    events = [json_format.ParseDict(line["result"], cluster.stubs.service.Event()) for line in watched]
    assert events == cluster.watch(job)
    assert [event.step.step for event in events if event.HasField("step")] == [1, 2, 3, 4, 5]
    over_rpc = list(cluster.jobs.Logs(cluster.stubs.service.LogsRequest(job_id=job), timeout=60))
    texts = [base64.b64decode(line["result"]["text"]) for line in printed]
    assert sorted(texts) == sorted(line.text for line in over_rpc)
    assert len(tail) == 1


def test_a_stream_of_events_resumes_after_the_coordinator_was_killed_without_losing_or_repeating_steps(cluster):
    program = start_with_lasting_token(cluster)
    port, metrics_port = int(program.address.rpartition(":")[2]), cluster.metrics_port
    cluster.start_worker("h1", slots=2)
    job = cluster.submit(train__steps=400, checkpoint__every_steps=100)
    steps, states, last_id = [], [], ""

    def read_until(done):
        nonlocal last_id
        stream = http_client.Events(cluster, f"/api/v1/jobs/{job}/watch", last_id)
        assert stream.response.status == 200, stream.response.read()
        for name, data, _ in stream:
            if name == "job":
                assert data["job_id"] == job and "train" not in data["spec"]
            if "step" in data:
                steps.append(int(data["step"]["step"]))
            if "state" in data and name == "message":
                states.append(data["state"]["state"])
            if done(name, data):
                break
        last_id = stream.last_id
        stream.close()

    read_until(lambda name, data: len(steps) >= 20)
    read_until(lambda name, data: len(steps) >= 40)
    cluster.coordinator.signal(9)
    cluster.coordinator.wait()
    start_with_lasting_token(cluster, "--metrics", f"127.0.0.1:{metrics_port}", port=port)
    cluster.metrics_port = metrics_port
    read_until(lambda name, data: name == "end")

    assert steps == list(range(1, 401)), "each step must come once and in order"
    assert states.count("JOB_STATE_RUNNING") == 1 and states[-1] == "JOB_STATE_SUCCEEDED"


def test_viewers_read_without_specs_and_change_nothing(cluster):
    start_with_lasting_token(cluster, "--viewer-token-file", str(cluster.folder / "viewers"))
    viewer = (cluster.folder / "viewers").read_text().strip()
    service = cluster.stubs.service
    job = cluster.jobs.Submit(service.SubmitRequest(spec=cluster.stubs.job.JobSpec(
        name="small", command={"argv": ["true"], "env": ["KEY=secret-of-the-job"], "workdir": "/tmp"},
        resources={"ranks": 1})), timeout=60).job_id
    channel = grpc.insecure_channel(cluster.coordinator.address)
    metadata = [("authorization", f"Bearer {viewer}")]
    jobs = cluster.stubs.service_grpc.JobServiceStub(channel)
    agent = cluster.stubs.agent.DESCRIPTOR.services_by_name["AgentService"]

    seen = jobs.Get(service.GetRequest(job_id=job), timeout=60, metadata=metadata)
    listed = jobs.List(service.ListRequest(), timeout=60, metadata=metadata)
    over_http = http_client.post(cluster, "Get", {"job_id": job}, viewer)

    assert "secret-of-the-job" in str(cluster.get(job).job)
    for text in (str(seen), str(listed), over_http.body):
        assert "secret-of-the-job" not in text and "small" in text
    assert http_client.get(cluster, "/api/v1/whoami", viewer).json["role"] == "viewer"
    for name in ("trainyard.v1.JobService", "trainyard.v1.AgentService"):
        methods = (service if name.endswith("JobService") else cluster.stubs.agent).DESCRIPTOR.services_by_name[
            name.rpartition(".")[2]].methods
        for method in methods:
            reads = method.GetOptions().idempotency_level == 1  # 1: NO_SIDE_EFFECTS
            call = channel.stream_stream(f"/{name}/{method.name}")
            with pytest.raises(grpc.RpcError) as failed:
                list(call(iter([b""]), metadata=metadata, timeout=10))
                raise grpc.RpcError  # the call has succeeded
            code = getattr(failed.value, "code", lambda: None)()
            assert (code == grpc.StatusCode.PERMISSION_DENIED) != reads, (name, method.name, code)
    assert agent.methods
    refused = http_client.post(cluster, "Cancel", {"job_id": job}, viewer)
    assert refused.status == 403 and "viewers" in refused.json["message"]
    channel.close()


def test_actions_are_recorded_with_who_requested_them(lasting):
    job = lasting.submit()
    http_client.post(lasting, "Pause", {"job_id": job, "reason": "for the night"}, Trainyard_User="anna",
                     User_Agent="test/1.0 (x)")
    lasting.trainctl("resume", job)
    lasting.jobs.Cancel(lasting.stubs.service.CancelRequest(job_id=job), timeout=60)

    texts = [event.notice.text for event in lasting.jobs.ListEvents(
        lasting.stubs.service.ListEventsRequest(job_id=job), timeout=60).events if event.notice.rule == "operator"]

    assert any(text.startswith("submit requested by the operator at 127.0.0.1:") for text in texts)
    (paused,) = [text for text in texts if text.startswith("pause requested by the operator at 127.0.0.1:")]
    assert paused.endswith('over HTTP with test/1.0, who gave the name "anna"')
    assert any(text.startswith("resume requested by the operator at 127.0.0.1:") and "over HTTP" not in text
               for text in texts)
    assert any(text.startswith("cancel requested by") and "grpc-python" in text for text in texts)


def test_a_hostile_name_of_a_program_is_recorded_with_escapes_and_the_store_stays_readable(cluster):
    cluster.start_coordinator()
    job = cluster.submit()

    hostile = http_client.post(cluster, "Cancel", {"job_id": job}, User_Agent="x\xff\xfe\x85<b>/1")

    assert hostile.status == 200
    cluster.coordinator.signal(9)
    cluster.coordinator.wait()
    cluster.start_coordinator()
    events = http_client.post(cluster, "ListEvents", {"job_id": job}).json["events"]
    assert any("with x\\xff\\xfe\\x85<b>/1" in event.get("notice", {}).get("text", "") for event in events)


def test_a_call_whose_client_disconnects_before_it_is_processed_has_no_effect(lasting):
    """A lock on the store blocks the core each time that it tries to write, so that calls wait."""
    job = lasting.submit()
    path = "/api/v1/JobService/Cancel"
    body = json.dumps({"job_id": job})

    def value_of(metric):
        text = http_client.get(lasting, "/metrics", token="").body
        found = re.search(rf"^{re.escape(metric)} (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def cancelled_calls():
        return value_of('trainyard_rpcs_total{code="CANCELLED",method="Cancel"}')

    assert cancelled_calls() == 0
    store = sqlite3.connect(lasting.folder / "coordinator" / "store.db", isolation_level=None)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        store.execute("BEGIN IMMEDIATE")
        pausing = pool.submit(http_client.post, lasting, "Pause", {"job_id": job}, Grpc_Timeout="60S")
        try:
            # Until the store has refused the record of the pause, the core would carry out a Cancel.
            harness.wait_until(lambda: value_of("trainyard_store_commit_failures_total") > 0, "the pause waits")
            for _ in range(30):
                client = http_client.connect(lasting)
                client.request("POST", path, body, http_client.headers_for(
                    lasting, None, {"Content-Type": "application/json"}))
                time.sleep(0.05)  # the calls are spread over the time in which the core waits for the lock
                client.close()
            # When these scrapes have been answered, the one thread that owns all sockets of the HTTP port has seen that
            # the clients have disconnected.
            for _ in range(2):
                cancelled_calls()
        finally:
            store.execute("ROLLBACK")
            store.close()
        assert pausing.result().status == 200, "a call whose client waits must be executed"

    harness.wait_until(lambda: cancelled_calls() > 0, "calls that waited were cancelled")
    assert lasting.get(job).state_name == "PAUSED"


def test_a_caller_cannot_claim_to_be_the_http_port(lasting):
    metadata = [("trainyard-bridge", "0" * 64), ("trainyard-bridge-by-bin", b"another user")]
    job = lasting.submit()
    channel = grpc.insecure_channel(lasting.coordinator.address)
    jobs = lasting.stubs.service_grpc.JobServiceStub(channel)
    request = lasting.stubs.service.CancelRequest(job_id=job)
    with pytest.raises(grpc.RpcError) as failed:
        jobs.Cancel(request, timeout=60, metadata=metadata)
    assert failed.value.code() == grpc.StatusCode.UNAUTHENTICATED
    own = ("authorization", f"Bearer {tokens.read(lasting.coordinator.address)}")
    jobs.Cancel(request, timeout=60, metadata=[*metadata, own])
    events = lasting.jobs.ListEvents(lasting.stubs.service.ListEventsRequest(job_id=job), timeout=60)
    assert "another user" not in str(events) and "cancel requested by the operator" in str(events)
    channel.close()


def test_without_a_token_http_only_reads(cluster):
    cluster.start_coordinator("--allow-local-users")
    job = cluster.submit()
    assert http_client.post(cluster, "Get", {"job_id": job}).json["state"] == "JOB_STATE_QUEUED"
    refused = http_client.post(cluster, "Cancel", {"job_id": job})
    assert refused.status == 403 and "--token-file" in refused.json["message"]
    whoami = http_client.get(cluster, "/api/v1/whoami").json
    assert whoami["role"] == "viewer" and not whoami["may_operate"]
    assert cluster.get(job).state_name == "QUEUED"


def test_the_examples_of_the_documentation_work(cluster):
    start_with_lasting_token(cluster)
    cluster.start_worker("h1", slots=1)
    text = (harness.ROOT / "docs" / "http.md").read_text()
    blocks = re.findall(r"<!-- run: (\w+) -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert "Bearer $token" not in text, "an example has the token in an argument, which every user of the host can read"
    environment = {**os.environ, "TRAINYARD_HTTP": f"http://127.0.0.1:{cluster.metrics_port}",
                   "TRAINYARD_TOKEN_FILE": str(tokens.path_of(cluster.coordinator.address))}
    programs = {"shell": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
    printed = {}
    for language, block in blocks:
        done = subprocess.run([*programs[language], block], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (language, done.stdout, done.stderr)
        printed[language] = done.stdout
    assert '"JOB_STATE_SUCCEEDED"' in printed["shell"] and base64.b64encode(b"hello").decode() in printed["shell"]
    assert "JOB_STATE_SUCCEEDED" in printed["python"] and "\n400 " in printed["python"]
