"""The API as other programs call it, with the Python stub: the details of every error, deadlines, versions, pages and a
Submit that is repeated across a restart of the coordinator."""

import json
import os
import re
import signal
import time
import types

import grpc
import pytest

import harness
import http_client
import tokens

SHORT_S = 60


def details_of(stubs, error):
    """{name: message} of the google.rpc details of a failed call; checks that the Status in them is the call's."""
    metadata = dict(error.trailing_metadata() or ())
    status = stubs.status.Status.FromString(metadata["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    found = {}
    for detail in status.details:
        message = getattr(stubs.error_details, detail.type_url.rpartition(".")[2])()
        assert detail.Unpack(message)
        found[type(message).__name__] = message
    return found


def call(cluster, method, stub=None, /, **fields):
    """Calls a method of JobService; reads a stream to its end."""
    request_type = cluster.stubs.service.DESCRIPTOR.services_by_name["JobService"].methods_by_name[method].input_type
    request = getattr(cluster.stubs.service, request_type.name)(**fields)
    answer = getattr(stub or cluster.jobs, method)(request, timeout=SHORT_S)
    return list(answer) if method in ("Watch", "Logs") else answer


def refusal(cluster, method, stub=None, /, **fields):
    with pytest.raises(grpc.RpcError) as refused:
        call(cluster, method, stub, **fields)
    return refused.value


NO_JOB = {"job_id": "nosuchjob"}
VALID = {  # the fields of a request in which no value is wrong, but the named job or host does not exist
    "Submit": {}, "Get": NO_JOB, "List": {}, "Watch": NO_JOB, "Cancel": NO_JOB, "FindJobs": {"text": "nosuchjob"},
    "Logs": NO_JOB, "GetServerInfo": {}, "Restart": NO_JOB, "Pause": NO_JOB, "Save": NO_JOB, "Resume": NO_JOB,
    "SetPriority": {**NO_JOB, "priority": 1}, "GetQueue": {},
    "ListHosts": {}, "SetHost": {"name": "nosuchhost", "action": 1}, "ListEvents": NO_JOB,
}
INVALID = {  # the fields of an invalid request, and the one that is wrong
    "Submit": ({"job_id": "UPPER"}, "job_id"), "Get": ({}, "job_id"), "List": ({"page_size": 1001}, "page_size"),
    "Watch": ({}, "job_id"), "Cancel": ({}, "job_id"), "FindJobs": ({}, "text"), "Logs": ({}, "job_id"),
    "Restart": ({}, "job_id"), "Pause": ({}, "job_id"), "Save": ({}, "job_id"), "Resume": ({}, "job_id"),
    "SetPriority": ({**NO_JOB, "priority": 101}, "priority"), "GetQueue": ({"page_size": 1001}, "page_size"),
    "ListHosts": ({"page_size": 1001}, "page_size"), "SetHost": ({"name": "x"}, "action"),
    "ListEvents": ({"page_size": 10_001}, "page_size"),
}
# The methods with a page token, each with the other fields that its request needs.
TOKENS = {"List": {}, "FindJobs": {"text": "x"}, "GetQueue": {}, "ListHosts": {}, "ListEvents": {}}


def methods_of(stubs):
    return {method.name for method in stubs.service.DESCRIPTOR.services_by_name["JobService"].methods}


def test_every_method_answers_every_kind_of_error_with_details(cluster, stubs):
    cluster.start_coordinator()
    # A method that this test does not know must be added to its tables.
    assert methods_of(stubs) == set(VALID) == set(INVALID) | {"GetServerInfo"}
    stranger = stubs.service_grpc.JobServiceStub(grpc.insecure_channel(cluster.coordinator.address))

    for name, fields in VALID.items():
        unknown = refusal(cluster, name, stranger, **fields)
        assert unknown.code() == grpc.StatusCode.UNAUTHENTICATED, name
        assert details_of(stubs, unknown)["ErrorInfo"].reason == "TOKEN_MISSING", name
        if fields in (NO_JOB, VALID["SetHost"], VALID["SetPriority"]):
            missing = refusal(cluster, name, **fields)
            details = details_of(stubs, missing)
            assert missing.code() == grpc.StatusCode.NOT_FOUND, name
            kind = "host" if name == "SetHost" else "job"
            assert details["ErrorInfo"].reason == f"{kind.upper()}_NOT_FOUND", name
            assert (details["ResourceInfo"].resource_type, details["ResourceInfo"].resource_name) == (kind,
                                                                                                    f"nosuch{kind}")
        if name in INVALID:
            wrong, field = INVALID[name]
            invalid = refusal(cluster, name, **wrong)
            details = details_of(stubs, invalid)
            assert invalid.code() == grpc.StatusCode.INVALID_ARGUMENT, name
            assert details["ErrorInfo"].reason == "INVALID_REQUEST", name
            assert [one.field for one in details["BadRequest"].field_violations] == [field], name
            assert details["ErrorInfo"].domain == "trainyard", name
    for name, fields in TOKENS.items():
        assert [one.field for one in details_of(stubs, refusal(cluster, name, page_token="before-x", **fields))[
            "BadRequest"].field_violations] == ["page_token"], name


def reason_over_grpc(stubs, call, *arguments, **options):
    """(status code, reason) of a call that fails; `call` is a method of a stub or of a channel."""
    with pytest.raises(grpc.RpcError) as failed:
        answer = call(*arguments, timeout=SHORT_S, **options)
        list(answer)  # of a stream
    return failed.value.code().name, info_of(details_of(stubs, failed.value)["ErrorInfo"])


def reason_over_http(answer):
    """(status code, reason) of an answer that is an error."""
    assert answer.status >= 400 and answer.headers["Content-Type"].startswith("application/json"), answer.body
    (code,) = [code.name for code in grpc.StatusCode if code.value[0] == answer.json["code"]]
    (info,) = [one for one in answer.json["details"] if one["@type"].endswith("/google.rpc.ErrorInfo")]
    return code, info_of(types.SimpleNamespace(**info))


def info_of(info):
    assert info.domain == "trainyard" and info.reason in REASONS, info
    return info.reason


REASONS = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+|OVERLOADED)`",
                         (harness.ROOT / "docs" / "services.md").read_text()))


def start_with_roles(cluster):
    """Starts a coordinator with a token for operators, which this user's programs use, and one for viewers. Returns the
    token for viewers."""
    port = harness.free_port()
    tokens.folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    viewers = cluster.folder / "viewers"
    cluster.start_coordinator("--token-file", tokens.path_of(f"127.0.0.1:{port}"), "--viewer-token-file", viewers,
                              port=port)
    return viewers.read_text().strip()


def test_every_failed_call_has_a_documented_reason_over_grpc_and_over_http(cluster, stubs):
    viewer = start_with_roles(cluster)
    operator = tokens.read(cluster.coordinator.address)
    service = stubs.service.DESCRIPTOR.services_by_name["JobService"]
    stub = stubs.service_grpc.JobServiceStub(grpc.insecure_channel(cluster.coordinator.address))

    def failure(method, token, fields):
        metadata = [("authorization", f"Bearer {token}")] if token else []
        request = getattr(stubs.service, service.methods_by_name[method].input_type.name)(**fields)
        found = reason_over_grpc(stubs, getattr(stub, method), request, metadata=metadata)
        over_http = reason_over_http(http_client.post(cluster, method, fields, token))
        assert found == over_http, (method, fields)
        return found

    for method in service.methods:
        name = method.name
        assert failure(name, "", VALID[name]) == ("UNAUTHENTICATED", "TOKEN_MISSING"), name
        assert failure(name, "0" * 64, VALID[name]) == ("UNAUTHENTICATED", "TOKEN_WRONG"), name
        if method.GetOptions().idempotency_level != 1:  # 1: NO_SIDE_EFFECTS
            assert failure(name, viewer, VALID[name]) == ("PERMISSION_DENIED", "OPERATOR_REQUIRED"), name
        if name in INVALID:
            assert failure(name, operator, INVALID[name][0]) == ("INVALID_ARGUMENT", "INVALID_REQUEST"), name
        if NO_JOB.items() <= VALID[name].items():
            assert failure(name, operator, VALID[name]) == ("NOT_FOUND", "JOB_NOT_FOUND"), name
    assert failure("SetHost", operator, VALID["SetHost"]) == ("NOT_FOUND", "HOST_NOT_FOUND")


def test_requests_that_reach_no_method_have_a_reason_too(cluster, stubs):
    start_with_roles(cluster)
    channel = tokens.dial(cluster.coordinator.address)

    def send(path, text=b""):
        return reason_over_grpc(stubs, channel.unary_stream(path), text)

    for path in ("/trainyard.v1.JobService/NoSuchMethod", "/trainyard.v1.AgentService/NoSuchMethod", "/a.B/C", "/x"):
        assert send(path) == ("UNIMPLEMENTED", "METHOD_UNKNOWN"), path
    for method in methods_of(stubs):
        answer = send(f"/trainyard.v1.JobService/{method}", b"\xff\xff")
        assert answer == ("INVALID_ARGUMENT", "INVALID_REQUEST"), method
    agents = channel.stream_stream("/trainyard.v1.AgentService/Attach")
    assert reason_over_grpc(stubs, agents, iter([b"\xff\xff"])) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
    assert reason_over_grpc(stubs, grpc.insecure_channel(cluster.coordinator.address).stream_stream(
        "/trainyard.v1.AgentService/Attach"), iter([])) == ("UNAUTHENTICATED", "TOKEN_MISSING")

    def get(path, **headers):
        return reason_over_http(http_client.get(cluster, path, **headers))[1]

    def post(method, body, **headers):
        return reason_over_http(http_client.post(cluster, method, body, **headers))[1]

    assert get("/no-such-path") == get("/api/v1/no-such-path") == get("/api/v1/watch/nothing") == "PATH_NOT_FOUND"
    assert get("/api/v1/jobs/nosuchjob") == get("/api/v1/jobs/nosuchjob/watch") == "JOB_NOT_FOUND"
    assert get("/api/v1/jobs?page_size=x") == get("/api/v1/jobs?x=1") == "INVALID_REQUEST"
    assert get("/api/v1/jobs", Host="evil.example") == get("/api/v1/jobs", Origin="null") == "OTHER_SITE"
    assert get("/api/v1/JobService/Get") == "HTTP_METHOD_NOT_ALLOWED"
    assert get("/api/v1/jobs?a=1&a=2") == "HTTP_REQUEST_INVALID"
    assert post("NoSuchMethod", {}) == "METHOD_UNKNOWN"
    assert post("Get", "{") == post("Get", NO_JOB, Grpc_Timeout="soon") == "INVALID_REQUEST"
    assert post("List", {}, Content_Type="text/plain") == "CONTENT_TYPE_NOT_JSON"
    assert post("List", {}, Grpc_Timeout="1n") == "DEADLINE_EXCEEDED"
    assert post("Get", "x" * (5 << 20)) == "MESSAGE_TOO_LARGE"


def test_errors_about_a_job_contain_its_state_and_version(cluster, stubs):
    cluster.start_coordinator()
    job = cluster.submit()
    version = cluster.get(job).job.resource_version
    rows = [("Resume", {}, "FAILED_PRECONDITION", "WRONG_STATE"), ("Save", {}, "FAILED_PRECONDITION", "WRONG_STATE"),
            ("Restart", {}, "FAILED_PRECONDITION", "WRONG_STATE"),
            ("Cancel", {"save": True}, "FAILED_PRECONDITION", "WRONG_STATE"),
            ("Watch", {"after_sequence": 1 << 62}, "OUT_OF_RANGE", "VERSION_UNKNOWN"),
            *((name, {"expected_version": version + 1}, "ABORTED", "VERSION_MISMATCH")
              for name in ("Cancel", "Restart", "Pause", "Save", "Resume")),
            ("SetPriority", {"priority": 7, "expected_version": version + 1}, "ABORTED", "VERSION_MISMATCH"),
            ("Logs", {"ranks": [7]}, "NOT_FOUND", "RANK_NOT_FOUND")]

    for name, fields, code, reason in rows:
        error = refusal(cluster, name, job_id=job, **fields)
        info = details_of(stubs, error)["ErrorInfo"]
        assert (error.code().name, info.reason) == (code, reason), (name, error.details())
        assert dict(info.metadata) == {"job_id": job, "state": "QUEUED", "generation": "0",
                                       "resource_version": str(version)}, name
    assert cluster.get(job).job.resource_version == version, "no refused call has changed anything"

    other = refusal(cluster, "Submit", job_id=job, spec=stubs.job.JobSpec(name="other"))
    assert (other.code().name, details_of(stubs, other)["ErrorInfo"].reason) == ("ALREADY_EXISTS", "JOB_ID_IN_USE")

    done = cluster.trainctl("pause", job, "--if-version", version + 1, "--json", expect=1)
    line = json.loads(done.stdout)
    assert (line["code"], line["reason"], line["metadata"]["state"]) == ("ABORTED", "VERSION_MISMATCH", "QUEUED")
    cluster.trainctl("set-priority", job, "60", "--if-version", version + 1, expect=1)
    assert json.loads(cluster.trainctl("pause", job, "--if-version", version, "--json").stdout)["state"] == "PAUSED"


def unread_bytes(port):
    """The number of bytes that have arrived at this port of 127.0.0.1 and that no program has read yet."""
    rows = [line.split() for line in open("/proc/net/tcp").read().splitlines()[1:]]
    return sum(int(row[4].partition(":")[2], 16) for row in rows if int(row[1].partition(":")[2], 16) == port)


def test_a_call_that_its_caller_gave_up_has_no_effect(one_host, stubs):
    """The coordinator is stopped by a signal while calls wait for it; their callers give up before it continues."""
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 2)
    version = one_host.get(job).job.resource_version
    port = int(one_host.coordinator.address.rpartition(":")[2])
    marker = stubs.service.CancelRequest(job_id="nosuchjob123", reason="x" * 3000)

    one_host.coordinator.signal(signal.SIGSTOP)
    waiting = [one_host.jobs.Pause.future(stubs.service.PauseRequest(job_id=job), timeout=1.0),
               one_host.jobs.Cancel.future(stubs.service.CancelRequest(job_id=job), timeout=1.0)]
    try:
        assert {one.code() for one in waiting} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        # A later call on the same connection shows that the cancellations, which were sent before it, have arrived.
        unread = unread_bytes(port)
        last = one_host.jobs.Cancel.future(marker, timeout=60)
        harness.wait_until(lambda: unread_bytes(port) >= unread + 3000, "the later call has arrived")
    finally:
        one_host.coordinator.signal(signal.SIGCONT)

    assert last.code() == grpc.StatusCode.NOT_FOUND
    at = one_host.get(job).job.last_step
    view = one_host.wait_for_step(job, at + 5)
    assert (view.state_name, view.job.resource_version) == ("RUNNING", version)


def test_streams_end_when_their_reader_disconnects(one_host, stubs):
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 2)

    def streams():
        """The number of the coordinator's open descriptors, of which each connection has one."""
        return len(os.listdir(f"/proc/{one_host.coordinator.pid}/fd"))

    before = streams()
    readers = [one_host.start_trainctl("--coordinator", one_host.coordinator.address, *verb, job)
               for verb in (("watch",), ("logs", "-f")) for _ in range(4)]
    harness.wait_until(lambda: all(reader.output() for reader in readers), "all readers have read something")
    for reader in readers:
        reader.signal(signal.SIGKILL)
        reader.wait()
    harness.wait_until(lambda: streams() <= before, "the coordinator has closed their streams")


def test_submit_is_repeated_across_a_restart_and_submits_once(cluster, stubs):
    cluster.start_coordinator()
    path = cluster.write_job()
    first = cluster.trainctl("submit", path, "--job-id", "nightly0001").stdout
    cluster.coordinator.signal(signal.SIGKILL)
    cluster.coordinator.wait()
    cluster.start_coordinator()

    again = cluster.trainctl("submit", path, "--job-id", "nightly0001").stdout
    other = cluster.trainctl("submit", path, "--job-id", "nightly0001", "--set", "train.steps=21", expect=2)

    assert first == again == "nightly0001\n"
    assert "was used for another request" in other.stderr
    assert [job.job_id for job in call(cluster, "List").jobs] == ["nightly0001"]
    assert "must be 8 to 32 characters" in cluster.trainctl("submit", path, "--job-id", "NO", expect=2).stderr


def test_get_then_watch_continues_without_loss_or_repetition(slow_host, stubs):
    cluster = slow_host.cluster
    job = cluster.submit(train__steps=400, train__evaluate={"every_steps": 50, "batches": 1})
    cluster.wait_for_step(job, 60)
    seen = cluster.get(job).job
    slow_host.clear_faults()
    request = stubs.service.WatchRequest(job_id=job, after_sequence=seen.resource_version, after_step=seen.last_step,
                                         after_eval_step=seen.last_eval_step)

    events = list(cluster.jobs.Watch(request, timeout=240))

    assert [event.step.step for event in events if event.HasField("step")] == list(range(seen.last_step + 1, 401))
    evaluations = [event.eval.step for event in events if event.HasField("eval")]
    assert evaluations == list(range(seen.last_eval_step + 50, 401, 50))
    assert events[-1].state.state == stubs.service.JOB_STATE_SUCCEEDED
    whole = cluster.watch(job)
    stored = [event.sequence for event in whole if event.WhichOneof("kind") in ("notice", "checkpoint")]
    assert [event.sequence for event in events if event.WhichOneof("kind") in ("notice", "checkpoint")] == [
        sequence for sequence in stored if sequence > seen.resource_version]


def test_an_unknown_version_of_the_api_is_refused_with_what_to_upgrade(cluster, stubs):
    cluster.start_coordinator()
    bearer = ("authorization", f"Bearer {tokens.read(cluster.coordinator.address)}")
    channel = grpc.insecure_channel(cluster.coordinator.address)
    stub = stubs.service_grpc.JobServiceStub(channel)

    def ask(header, method="GetServerInfo", **fields):
        request = getattr(stubs.service, f"{method}Request")(**fields)
        answer = getattr(stub, method).with_call(request, timeout=SHORT_S,
                                                 metadata=[bearer, ("trainyard-client", header)])
        return dict(answer[1].initial_metadata())["trainyard-server"]

    assert ask("other-program/7 api=1-9").startswith("trainyard-coordinator/")
    assert ask("not such a header at all").endswith("api=1-1")
    for header, upgrade in (("trainctl/9.0.0 api=7-8", "upgrade trainyard-coordinator to version 9.0.0"),
                            ("trainctl/0.0.1 api=0-0", "upgrade trainctl to version")):
        with pytest.raises(grpc.RpcError) as refused:
            ask(header)
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert upgrade in refused.value.details(), refused.value.details()
        assert details_of(stubs, refused.value)["ErrorInfo"].reason == "INCOMPATIBLE_VERSION"
    watch = stub.Watch(stubs.service.WatchRequest(job_id="nosuchjob"), timeout=SHORT_S,
                       metadata=[bearer, ("trainyard-client", "trainctl/9.0.0 api=7-8")])
    with pytest.raises(grpc.RpcError) as refused:
        next(iter(watch))
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION


class FakeCoordinator:
    """Answers GetServerInfo and ListHosts as a coordinator of another version."""

    def __init__(self, stubs, header):
        from concurrent import futures

        class Service(stubs.service_grpc.JobServiceServicer):
            def GetServerInfo(self, request, context):
                context.send_initial_metadata((("trainyard-server", header),))
                return stubs.service.ServerInfo(version=header.partition("/")[2].partition(" ")[0], api=1, oldest_api=1)

            def ListHosts(self, request, context):
                context.send_initial_metadata((("trainyard-server", header),))
                return stubs.service.ListHostsResponse(
                    hosts=[stubs.service.HostStatus(name=name, version=version)
                           for name, version in (("a", "0.1.0"), ("b", "0.1.0"), ("c", "0.0.9"))])

        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        stubs.service_grpc.add_JobServiceServicer_to_server(Service(), self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def __enter__(self):
        return self.address

    def __exit__(self, *_):
        self._server.stop(None)


def test_trainctl_version_names_all_versions_and_warns_once_of_another_release(cluster, stubs):
    with FakeCoordinator(stubs, "trainyard-coordinator/0.9.1 api=1-3") as address:
        done = cluster.run_trainctl("--coordinator", address, "version")
        as_json = json.loads(cluster.run_trainctl("--coordinator", address, "version", "--json").stdout)
    assert "coordinator 0.9.1 (API 1)" in done.stdout
    assert "worker daemons: 0.0.9 on 1 host, 0.1.0 on 2 hosts" in done.stdout
    assert done.stderr.count("are of different versions") == 1, done.stderr
    assert as_json["coordinator"]["daemons"] == {"0.0.9": 1, "0.1.0": 2}

    with FakeCoordinator(stubs, "trainyard-coordinator/0.1.9 api=1-1") as address:
        assert cluster.run_trainctl("--coordinator", address, "version").stderr == "", (
            "versions that differ only in the last part must cause no warning")

    with FakeCoordinator(stubs, "trainyard-coordinator/3.0.0 api=4-5") as address:
        refused = cluster.run_trainctl("--coordinator", address, "version", expect=2)
    assert "upgrade trainctl to version 3.0.0" in refused.stderr


def test_a_real_pair_of_the_same_version_warns_of_nothing(one_host):
    done = one_host.trainctl("version")

    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and lines[2].startswith("worker daemons: ") and lines[2].endswith(" on 1 host")


def test_calls_wait_for_a_busy_coordinator_no_longer_than_their_deadline(cluster, stubs):
    cluster.start_coordinator()
    cluster.coordinator.signal(signal.SIGSTOP)
    try:
        begin = time.monotonic()
        with pytest.raises(grpc.RpcError) as late:
            cluster.jobs.List(stubs.service.ListRequest(), timeout=0.3)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED and time.monotonic() - begin < 30
    finally:
        cluster.coordinator.signal(signal.SIGCONT)
    assert call(cluster, "GetServerInfo").version
