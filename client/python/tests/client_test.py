"""Addresses, tokens, errors, the order of events, and tables."""

import asyncio
import concurrent.futures
import functools
import os
import socket
import threading

import grpc
import pytest

import trainyard
from trainyard import _calls, _dial, _events, aio, errors, job, schema


@pytest.fixture
def listener(tmp_path, monkeypatch):
    """A listening socket and the path at which the token for it belongs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        folder = tmp_path / "trainyard" / "tokens"
        folder.mkdir(parents=True)
        network = os.stat("/proc/self/ns/net").st_ino
        yield f"127.0.0.1:{port}", folder / f"{os.uname().nodename}-{network}-127.0.0.1-{port}"


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)


def test_the_token_of_this_users_coordinator_is_found(listener):
    address, path = listener
    assert _dial.Target(address).token() is None
    write(path, "a" * 52 + "\n")

    assert _dial.Target(address).token() == "a" * 52
    assert _dial.Target(address.replace("127.0.0.1", "localhost")).token() == "a" * 52


def test_a_user_without_an_account_and_a_home_has_no_token(listener, monkeypatch):
    def fail(_):
        raise KeyError("uid not found")

    for variable in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(_dial.pwd, "getpwuid", fail)

    assert _dial.Target(listener[0]).token() is None


def test_no_token_is_sent_to_a_program_of_another_user(listener, monkeypatch):
    address, path = listener
    write(path, "a" * 52)
    monkeypatch.setattr(_dial, "listening_users", lambda host, port: {4711})

    with pytest.raises(errors.PermissionDeniedError, match="user 4711 listens"):
        _dial.Target(address).token()


def test_the_owner_is_looked_for_again_if_the_coordinator_starts_meanwhile(listener, monkeypatch):
    address, path = listener
    write(path, "a" * 52)
    looks = iter([set(), {os.geteuid()}])
    monkeypatch.setattr(_dial, "listening_users", lambda host, port: next(looks))

    assert _dial.Target(address).token() == "a" * 52


def test_no_token_is_sent_to_a_unix_socket_of_another_user(tmp_path, monkeypatch):
    token, path = tmp_path / "token", tmp_path / "c.sock"
    write(token, "a" * 52)
    target = _dial.Target(f"unix:{path}", token_file=token)
    assert target.token() is None  # no program listens

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert target.token() == "a" * 52
        monkeypatch.setattr(_dial, "_owner_of_socket", lambda path: 4711)
        with pytest.raises(errors.PermissionDeniedError, match="user 4711 listens"):
            target.token()


def test_the_kernel_names_the_users_that_listen(listener):
    address, _ = listener
    port = int(address.rpartition(":")[2])

    assert _dial.listening_users("127.0.0.1", port) == {os.geteuid()}
    assert _dial.listening_users("127.0.0.1", 1) == set()


@pytest.mark.parametrize("bound, asked", [("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1"),
                                          ("::ffff:127.0.0.1", "127.0.0.1")])
def test_the_kernel_names_the_users_that_listen_on_ipv6(bound, asked):
    with socket.socket(socket.AF_INET6) as server:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((bound, 0))
        server.listen()
        port = server.getsockname()[1]

        assert _dial.listening_users(asked, port) == {os.geteuid()}
        assert _dial.listening_users("::2", port) == ({os.geteuid()} if bound == "::" else set())


def test_a_listener_on_ipv4_only_is_not_listed_for_ipv6(listener):
    assert _dial.listening_users("::1", int(listener[0].rpartition(":")[2])) == set()


@pytest.mark.parametrize("text, mode, problem", [
    ("short", 0o600, "does not contain a token"),
    ("b" * 52, 0o604, "other users have access"),
    ("b" * 40 + " " + "c" * 9, 0o600, "does not contain a token"),
])
def test_a_wrong_token_file_is_refused_without_its_content(listener, text, mode, problem):
    address, path = listener
    write(path, text, mode)

    for target in (_dial.Target(address), _dial.Target(address, token_file=path)):
        with pytest.raises(errors.InvalidArgumentError, match=problem) as refused:
            target.token()
        assert text not in str(refused.value)


@pytest.mark.parametrize("address, kind", [
    ("nonsense", errors.InvalidArgumentError), ("1.2.3.4:0", errors.InvalidArgumentError),
    ("::1:7070", errors.InvalidArgumentError), ("host:x", errors.InvalidArgumentError),
    ("10.0.0.1:7070", errors.FailedPreconditionError), ("127.evil.example:1", errors.FailedPreconditionError),
])
def test_addresses_that_are_wrong_or_not_on_this_machine_are_refused(address, kind):
    with pytest.raises(kind):
        trainyard.Client(address)


def test_plain_text_beyond_this_machine_must_be_allowed():
    assert trainyard.Client("10.0.0.1:7070", allow_plaintext=True).address == "10.0.0.1:7070"


def test_a_coordinator_that_does_not_answer_is_named(listener):
    address, _ = listener
    closed = f"127.0.0.1:{int(address.rpartition(':')[2])}"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{unused.getsockname()[1]}"

    with pytest.raises(errors.UnavailableError, match=f"{closed} does not answer"):
        trainyard.Client(closed, reconnect_s=0.1).get_server_info()


def test_an_unanswered_submit_names_the_job_that_may_run(monkeypatch):
    def fail(*_):
        raise errors.DeadlineExceededError("no answer")

    async def fail_later(*_):
        fail()

    one = {"name": "hello", "command": {"argv": ["true"]}}
    client, later = (kind("127.0.0.1:1", reconnect_s=0) for kind in (trainyard.Client, aio.AsyncClient))
    monkeypatch.setattr(client, "_call_once", fail)
    monkeypatch.setattr(later, "_call_once", fail_later)

    with pytest.raises(errors.DeadlineExceededError, match="may have been submitted as order00000017") as lost:
        client.submit(one, job_id="order00000017")
    assert lost.value.job_id == "order00000017"
    with pytest.raises(errors.DeadlineExceededError, match="may have been submitted as order00000018"):
        asyncio.run(later.submit(one, job_id="order00000018"))
    with pytest.raises(errors.DeadlineExceededError, match="^no answer$"):
        client.get("order00000017")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The address of a server whose calls of Logs fail, and the event for which its streams of Watch wait before they
    end."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    release = threading.Event()

    def watch(*_):
        yield schema.Event(sequence=1, notice=schema.Notice(text="a"))
        release.wait(10)
        yield schema.Event(sequence=2, state=schema.StateChange(state=schema.STATES.index("SUCCEEDED")))

    def logs(_, context):
        context.send_initial_metadata((("trainyard-server", "trainyard-coordinator/0.1.0 api=1-1"),))
        yield schema.LogLine(rank=1)
        context.abort(grpc.StatusCode.UNAVAILABLE, "host w1 is not connected")

    handlers = {}
    for name, answer in (("Watch", watch), ("Logs", logs)):
        _, request, response = _calls.method_of(name)
        handlers[name] = grpc.unary_stream_rpc_method_handler(answer, request.FromString, response.SerializeToString)
    serving = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    serving.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(schema.SERVICE.full_name, handlers),))
    port = serving.add_insecure_port("127.0.0.1:0")
    serving.start()
    yield f"127.0.0.1:{port}", release
    release.set()
    serving.stop(None).wait()


def test_a_call_that_fails_does_not_end_the_other_calls_of_the_client(server):
    address, release = server
    with trainyard.Client(address, reconnect_s=0) as client:
        events = client.watch("abcdefgh")
        assert next(events).sequence == 1

        with pytest.raises(errors.UnavailableError, match="w1 is not connected") as failed:
            list(client.logs("abcdefgh"))
        assert failed.value.served_s > 0

        release.set()
        assert [event.sequence for event in events] == [2]


def test_a_call_that_fails_does_not_end_the_other_calls_of_the_client_with_asyncio(server):
    address, release = server

    async def fail_while_watching():
        async with aio.AsyncClient(address, reconnect_s=0) as client:
            events = client.watch("abcdefgh")
            assert (await events.__anext__()).sequence == 1

            with pytest.raises(errors.UnavailableError, match="w1 is not connected") as failed:
                [line async for line in client.logs("abcdefgh")]
            assert failed.value.served_s > 0

            release.set()
            return [event.sequence async for event in events]

    assert asyncio.run(fail_while_watching()) == [2]


def test_a_client_with_asyncio_works_in_one_event_loop_after_the_other(server):
    address, release = server
    release.set()
    client = aio.AsyncClient(address, reconnect_s=0)

    async def read():
        return [event.sequence async for event in client.watch("abcdefgh")]

    assert [asyncio.run(read()) for _ in range(2)] == [[1, 2], [1, 2]]
    asyncio.run(client.close())


def test_a_watch_may_end_when_nothing_arrives_any_more(monkeypatch):
    answers = [[], [event(2, notice=schema.Notice(text="b"))], [event(1, notice=schema.Notice(text="a"))]]
    later_answers = list(answers)

    def stream(name, fields, timeout):
        yield from answers.pop()
        raise errors.DeadlineExceededError(f"{name} has ended after {timeout} s")

    async def stream_later(name, fields, timeout):
        for one in later_answers.pop():
            yield one
        raise errors.DeadlineExceededError(f"{name} has ended after {timeout} s")

    async def watch(client):
        return [one.sequence async for one in client.watch("abcdefgh", pause_s=15)]

    client, later = trainyard.Client("127.0.0.1:1"), aio.AsyncClient("127.0.0.1:1")
    monkeypatch.setattr(client, "_stream", stream)
    monkeypatch.setattr(later, "_stream", stream_later)
    monkeypatch.setattr(client, "get", lambda job_id: None)
    monkeypatch.setattr(later, "get", lambda job_id: asyncio.sleep(0))

    assert [one.sequence for one in client.watch("abcdefgh", pause_s=15)] == [1, 2]
    assert asyncio.run(watch(later)) == [1, 2]


def test_a_watch_without_events_survives_a_restart_long_after_an_earlier_one(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(_events, "Retry", functools.partial(_events.Retry, clock=lambda: now[0]))
    end = event(1, state=schema.StateChange(state=schema.STATES.index("SUCCEEDED")))
    answers = {name: [[end], 3600.0, 0.0] for name in ("sync", "async")}

    def answer(name):
        """One event, or the failure of a stream without events that was served for so long."""
        found = answers[name].pop()
        if isinstance(found, list):
            return found
        now[0] += found
        error = errors.UnavailableError("the coordinator has ended")
        error.served_s = found
        raise error

    async def stream_later(*_, **__):
        for one in answer("async"):
            yield one

    async def watch(client):
        return [one.sequence async for one in client.watch("abcdefgh")]

    client, later = trainyard.Client("127.0.0.1:1"), aio.AsyncClient("127.0.0.1:1")
    monkeypatch.setattr(client, "_stream", lambda *_, **__: iter(answer("sync")))
    monkeypatch.setattr(later, "_stream", stream_later)

    assert [one.sequence for one in client.watch("abcdefgh")] == [1]
    assert asyncio.run(watch(later)) == [1]


@pytest.mark.parametrize("states, found", [(["running"], "'running'"), ("RUNNING", "'R'")])
def test_a_state_that_does_not_exist_is_refused_with_the_names_of_all(states, found):
    with pytest.raises(errors.InvalidArgumentError, match=f"QUEUED, PLACED.*found {found}"):
        trainyard.Client("127.0.0.1:1").list(states=states)


def test_a_forked_process_cannot_use_the_client(monkeypatch):
    client = trainyard.Client("127.0.0.1:1")
    monkeypatch.setattr(os, "getpid", lambda: -1)

    with pytest.raises(errors.FailedPreconditionError, match="forked"):
        client.get("abcdefgh")


def test_each_code_has_a_class_and_control_characters_are_escaped():
    class Failed(grpc.RpcError):
        def code(self):
            return grpc.StatusCode.NOT_FOUND

        def details(self):
            return "no job \x1b[2Jx"

    error = errors.from_rpc(Failed(), "a:1")

    assert isinstance(error, errors.NotFoundError) and error.code == "NOT_FOUND"
    assert str(error) == "no job \\x1b[2Jx"


def event(sequence, **kind):
    return schema.Event(sequence=sequence, **kind)


def test_each_event_is_new_once_even_if_a_coordinator_reuses_numbers():
    seen = _events.EventFilter()
    step, notice = schema.StepReport(step=3), schema.Notice(text="a")

    assert seen.is_new(event(5, step=step)) and seen.is_new(event(6, notice=notice))
    assert not seen.is_new(event(6, notice=schema.Notice(text="b")))  # its sequence number is known
    assert not seen.is_new(event(7, step=step)) and not seen.is_new(event(8, notice=notice))
    assert seen.is_new(event(0, notice=notice))  # not stored
    seen.start_over(errors.OutOfRangeError("the number is not known"))
    assert seen.is_new(event(1, notice=schema.Notice(text="c"))) and seen.after_step == 3
    assert seen.is_new(event(2, generation=1, checkpoint=schema.CheckpointInfo(step=2)))
    assert not seen.is_new(event(3, generation=1, checkpoint=schema.CheckpointInfo(step=2)))
    assert seen.is_new(event(4, generation=2, checkpoint=schema.CheckpointInfo(step=2)))
    assert seen.is_new(event(5, generation=2, checkpoint=schema.CheckpointInfo(step=2, requested=True)))


def test_waits_double_up_to_a_second_until_the_time_is_used_up():
    now = [0.0]
    retries = _events.Retry(2.0, clock=lambda: now[0])

    waits = []
    while (wait := retries.failed()) is not None:
        waits.append(wait)
        now[0] += wait

    assert waits[:5] == [0.05, 0.1, 0.2, 0.4, 0.8] and sum(waits) == pytest.approx(2.0)
    retries.answered()
    assert retries.failed() == 0.05
    now[0] += 3600.0
    assert retries.failed(served_s=3599.0) == 0.05  # a stream without messages


def test_tables_escape_what_other_users_wrote():
    one = schema.Job(job_id="abcdefgh", state=4, reason="<b>&\x1b[2J", last_step=3, last_loss=1.5)
    one.spec.name = "small"

    table = job.JobTable([one])

    assert "&lt;b&gt;&amp;\\x1b[2J" in table._repr_html_() and "<b>" not in table._repr_html_()
    assert "abcdefgh  small  RUNNING  3     1.5000" in repr(table)


def test_names_cannot_reorder_or_break_a_line():
    one = schema.Job(job_id="abcdefgh", reason="a\nb")
    one.spec.name = "x\u202ey\nz"

    assert "x\\u202ey\\x0az" in repr(job.JobTable([one])) and "a\\x0ab" in job.JobTable([one])._repr_html_()
    assert errors.plain("one\ntwo\u2066") == "one\ntwo\\u2066"


class Stored:
    """A client with one stored job."""

    def __init__(self, events, last_step):
        self._events = events
        self._last_step = last_step

    def get(self, job_id):
        return schema.Job(job_id=job_id, last_step=self._last_step, spec=schema.JobSpec(name="a$b$"))

    def watch(self, job_id, pause_s):
        yield from self._events
        raise AssertionError("read beyond the last step, where a running job would wait")


def test_the_steps_of_a_running_job_are_returned_without_waiting_for_its_end():
    events = [event(i, step=schema.StepReport(step=i, loss=1 / i)) for i in (1, 2)]

    assert [(row.step, row.loss) for row in job.Job(Stored(events, 2), "abcdefgh").steps()] == [(1, 1.0), (2, 0.5)]
    assert job.Job(Stored([], 0), "abcdefgh").steps() == []


def test_steps_that_the_coordinator_no_longer_has_are_missed_with_a_warning():
    class Paused(Stored):
        def watch(self, job_id, pause_s):
            yield from self._events

    events = [event(1, step=schema.StepReport(step=1, loss=0.5))]
    with pytest.warns(UserWarning, match="no report of the steps 2 to 7"):
        assert len(job.Job(Paused(events, 7), "abcdefgh").steps()) == 1
