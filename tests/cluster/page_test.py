"""The status page of a real coordinator: its data, who may read it, and requests that are refused."""

import base64
import socket

import fake_hosts
import harness
import http_client
import processes
import tokens

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e \"'&"


def data(cluster, path):
    answer = http_client.get(cluster, f"/api/v1/{path}")
    assert answer.status == 200, answer.body
    return answer.json


def test_the_page_shows_a_job_its_losses_its_hosts_and_its_events(one_host):
    job = one_host.submit(train__steps=12, train__evaluate={"every_steps": 5, "batches": 2})
    run = one_host.wait_for_end(job).job.spec.checkpoint.dir

    (listed,) = data(one_host, "jobs")["jobs"]
    shown = data(one_host, f"jobs/{job}")
    steps = data(one_host, f"jobs/{job}/steps")["events"]
    events = data(one_host, f"jobs/{job}/events")["events"]
    (host,) = data(one_host, "hosts")["hosts"]

    assert listed["job_id"] == job and listed["state"] == "JOB_STATE_SUCCEEDED" and listed["last_step"] == "12"
    assert "train" not in listed["spec"] and shown["spec"]["resources"]["ranks"] == 2
    assert {rank.get("host") for rank in shown["ranks"]} == {"h1"} and shown["goodput"]["total_s"] > 0
    losses = {int(event["step"]["step"]): event["step"]["loss"] for event in steps if "step" in event}
    assert losses == harness.metrics_steps(run)
    assert [event["eval"]["step"] for event in steps if "eval" in event] == ["5", "10", "12"]
    states = [event["state"]["state"] for event in events if "state" in event]
    assert states[-1] == "JOB_STATE_SUCCEEDED" and any(event.get("generation") == "1" for event in events)
    assert host["name"] == "h1" and host["attached"]
    assert any(event.get("job_id") == job for event in data(one_host, "events")["events"])
    assert data(one_host, "info")["hosts"] == 1


def test_only_callers_with_the_token_read_data_and_hostile_text_stays_text(cluster):
    cluster.start_coordinator()
    job = cluster.submit()
    cluster.jobs.Cancel(cluster.stubs.service.CancelRequest(job_id=job, reason=HOSTILE), timeout=60)
    token = tokens.read(cluster.coordinator.address)

    for path in ("jobs", f"jobs/{job}", f"jobs/{job}/steps", "hosts", "events", "info", "no-such-path"):
        without = http_client.get(cluster, f"/api/v1/{path}", token="")
        assert without.status == 401 and token not in without.body
        assert http_client.get(cluster, f"/api/v1/{path}", "0" * len(token)).status == 401
    answer = http_client.get(cluster, f"/api/v1/jobs/{job}")
    page = http_client.get(cluster, "/", token="")

    assert answer.status == 200 and HOSTILE in answer.json["reason"]
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert page.status == 200 and "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert job not in page.body and token not in page.body
    unchanged = http_client.get(cluster, f"/api/v1/jobs/{job}", **{"If-None-Match": answer.headers["ETag"]})
    assert unchanged.status == 304
    assert http_client.get(cluster, "/api/v1/jobs?token=" + token).status == 400
    metrics = http_client.get(cluster, "/metrics", token="").body
    assert 'method="page_jobs"' not in metrics and 'code="UNAUTHENTICATED",method="page"' in metrics


def test_invalid_requests_are_refused_and_the_metrics_stay_available(cluster):
    cluster.start_coordinator()

    def send(text):
        with socket.create_connection(("127.0.0.1", cluster.metrics_port), timeout=60) as connection:
            try:
                connection.sendall(text)
                connection.shutdown(socket.SHUT_WR)
                return connection.makefile("rb").read().split(b"\r\n")[0].decode()
            except OSError:  # the connection was closed before all of the text was read
                return ""

    assert http_client.get(cluster, "/api/v1/jobs", Host="evil.example").status == 421
    assert http_client.get(cluster, "/api/v1/jobs/nosuchjob").status == 404
    assert "405" in send(b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert "400" in send(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
    assert "400" in send(b"\x00\xff\xfe garbage\r\n\r\n")
    assert send(b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000) in ("", "HTTP/1.1 431 Request Header Fields Too Large")
    assert http_client.get(cluster, "/metrics", token="").status == 200 and cluster.coordinator.alive()


def test_without_a_token_the_page_is_not_more_open_than_the_api(cluster):
    cluster.start_coordinator("--allow-local-users")
    assert http_client.get(cluster, "/api/v1/jobs", token="").status == 200
    cluster.close()
    port = harness.free_port()
    cluster.start_coordinator("--allow-local-users", "--metrics", f"0.0.0.0:{port}")
    cluster.metrics_port = port

    refused = http_client.get(cluster, "/api/v1/jobs", token="")

    assert refused.status == 403 and "--token-file" in refused.json["message"]


def test_with_no_page_only_the_metrics_are_served(cluster):
    cluster.start_coordinator("--no-page")

    assert http_client.get(cluster, "/").status == 404 and http_client.get(cluster, "/api/v1/jobs").status == 404
    assert http_client.get(cluster, "/metrics", token="").status == 200


def metric(cluster, name, **labels):
    """The value of a series; 0 if it does not exist."""
    wanted = ",".join(f'{key}="{value}"' for key, value in labels.items())
    line = f"{name}{{{wanted}}}" if wanted else name
    texts = http_client.get(cluster, "/metrics", token="").body.splitlines()
    found = [text for text in texts if text.startswith(f"{line} ")]
    return float(found[0].split()[-1]) if found else 0.0


def test_garbage_and_slow_clients_are_counted_logged_once_and_delay_nobody(cluster):
    cluster.start_coordinator()

    def open_with(text):
        connection = socket.create_connection(("127.0.0.1", cluster.metrics_port), timeout=60)
        connection.sendall(text)
        return connection

    head = b"POST /api/v1/JobService/Get HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    token = tokens.read(cluster.coordinator.address).encode()
    slow = [open_with(b"GET / HTTP/1.1\r\nX-Slow: ") for _ in range(20)]
    slow_body = open_with(head + b"Authorization: Bearer " + token + b"\r\nContent-Length: 10\r\n\r\n{")
    answers = {}
    for name, text in {"tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) + b"\r\n\r\n",
                       "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}   \r\n0\r\n\r\n",
                       "two lengths": head + b"Content-Length: 2\r\nContent-Length: 40\r\n\r\n{}",
                       "no token": head + b"Content-Length: 4000000\r\n\r\n" + b"x" * 100_000,
                       "long": b"GET / HTTP/1.1\r\nX: " + b"x" * 9_000}.items():
        answers[name] = open_with(text).makefile("rb").read()
    for _ in range(30):
        open_with(b"\0\0\0\r\n\r\n").close()

    assert answers["tls"].startswith(b"HTTP/1.1 400 ") and answers["two lengths"].startswith(b"HTTP/1.1 400 ")
    assert answers["chunked"].startswith(b"HTTP/1.1 411 ") and answers["no token"].startswith(b"HTTP/1.1 401 ")
    assert answers["long"].startswith(b"HTTP/1.1 431 ")
    # The slow clients are still connected, and other clients are answered.
    assert http_client.get(cluster, "/", token="").status == 200
    assert metric(cluster, "trainyard_http_refused_total", reason="malformed") >= 32
    assert slow_body.makefile("rb").read().startswith(b"HTTP/1.1 408 "), "a body that takes longer than 5 s is refused"
    assert [connection.recv(1) for connection in slow] == [b""] * 20
    assert metric(cluster, "trainyard_http_refused_total", reason="slow_head") == 20
    assert metric(cluster, "trainyard_http_refused_total", reason="slow_body") == 1
    log = cluster.coordinator.output()
    assert log.count("(malformed)") == 1 and log.count("(slow_head)") == 1, "each reason is logged once"


def test_readers_that_do_not_read_use_bounded_memory_and_delay_no_other_reader(cluster):
    cluster.start_coordinator("--allow-local-users")
    first = cluster.submit()
    request = cluster.stubs.service.SubmitRequest(spec=cluster.get(first).job.spec)
    for index in range(300):
        request.spec.name = f"job-{index}-" + "x" * 50
        request.spec.checkpoint.dir = f"{cluster.folder}/runs/{index}"
        cluster.jobs.Submit(request, timeout=60)
    rss = processes.resident_bytes(cluster.coordinator.pid)
    stuck = []
    for _ in range(40):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", cluster.metrics_port))
        connection.sendall(b"GET /api/v1/watch/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
        stuck.append(connection)
    harness.wait_until(lambda: metric(cluster, "trainyard_http_streams") == 40, "all readers have their stream")
    reader = http_client.Events(cluster, "/api/v1/watch/jobs", token="")
    seen = iter(reader)
    assert next(data for name, data, _ in seen if name == "jobs")["reset"]
    for index in range(50):
        cluster.jobs.Cancel(cluster.stubs.service.CancelRequest(job_id=first, reason="x" * 1000), timeout=60)
        request.spec.name = f"late-{index}"
        request.spec.checkpoint.dir = f"{cluster.folder}/runs/late-{index}"
        cluster.jobs.Submit(request, timeout=60)
    names = set()
    for name, data, _ in seen:
        names |= {job["spec"]["name"] for job in data.get("items", [])} if name == "jobs" else set()
        if "late-49" in names:
            break
    assert {f"late-{index}" for index in range(50)} <= names, "a reader that reads gets every change"
    assert processes.resident_bytes(cluster.coordinator.pid) - rss < 100 << 20
    for connection in stuck:
        connection.close()
    reader.close()
    harness.wait_until(lambda: metric(cluster, "trainyard_http_streams") == 0, "streams of gone readers are closed")


def test_all_hosts_are_listed_by_pages_and_streamed_beyond_a_page_of_the_api(cluster):
    cluster.start_coordinator()
    names = [f"h{index:04}" for index in range(1_300)]
    fake_hosts.register(cluster, names)

    first = data(cluster, "hosts")
    rest = data(cluster, f"hosts?page_token={first['next_page_token']}")
    small = data(cluster, "hosts?page_size=2")

    assert [host["name"] for host in first["hosts"] + rest["hosts"]] == names and "next_page_token" not in rest
    assert [host["name"] for host in small["hosts"]] == names[:2]
    assert http_client.get(cluster, "/api/v1/hosts?page_token=x").status == 400
    reader, shown, resets = http_client.Events(cluster, "/api/v1/watch/hosts"), {}, 0

    def read_until(done):
        nonlocal resets
        for name, change, _ in events:
            if name == "hosts":
                resets += change.get("reset", False)
                shown.update({host["name"]: host for host in change["items"]})
            if done():
                return

    events = iter(reader)
    read_until(lambda: len(shown) == len(names))
    cluster.jobs.SetHost(cluster.stubs.service.SetHostRequest(name=names[-1], action="ACTION_CORDON", reason="rust"),
                         timeout=60)
    fake_hosts.register(cluster, ["late"])
    read_until(lambda: "late" in shown and shown[names[-1]].get("cordoned"))
    reader.close()

    assert sorted(shown) == sorted([*names, "late"]) and resets == 1
    assert shown[names[-1]]["cordon_reason"] == "rust"


def test_connections_and_streams_beyond_the_limits_leave_the_api_and_the_metrics_available(cluster):
    cluster.start_coordinator()
    idle = [socket.create_connection(("127.0.0.1", cluster.metrics_port), timeout=60) for _ in range(300)]
    assert http_client.get(cluster, "/metrics", token="").status == 200
    assert cluster.get(cluster.submit()).state_name == "QUEUED"
    for connection in idle:
        connection.close()

    streams = [http_client.Events(cluster, "/api/v1/watch/jobs") for _ in range(100)]

    assert [stream.response.status for stream in streams] == [200] * 96 + [503] * 4
    assert http_client.get(cluster, "/metrics", token="").status == 200
    assert http_client.post(cluster, "List", {}).status == 200
    for stream in streams:
        stream.close()


def test_hostile_output_and_reasons_arrive_as_text(cluster):
    cluster.start_coordinator()
    cluster.start_worker("h1", slots=1)
    hostile = b"\x1b]0;pwned\x07\x1b[2J</script><img src=x onerror=alert(1)>\xff\xfe\r\n"
    script = cluster.folder / "print.sh"
    script.write_bytes(b"printf '%b' '" + b"".join(b"\\0%03o" % byte for byte in hostile) + b"'")
    spec = cluster.stubs.job.JobSpec(
        name="hostile", command={"argv": ["sh", str(script)], "workdir": "/tmp"}, resources={"ranks": 1})
    job = cluster.jobs.Submit(cluster.stubs.service.SubmitRequest(spec=spec), timeout=60).job_id
    cluster.wait_for_end(job)

    (line,) = http_client.lines(cluster, "Logs", {"job_id": job})
    waiting = cluster.submit(resources__ranks=4)
    cluster.jobs.Cancel(cluster.stubs.service.CancelRequest(job_id=waiting, reason="<b>bold</b>"), timeout=60)
    answer = http_client.get(cluster, f"/api/v1/jobs/{waiting}")

    assert base64.b64decode(line["result"]["text"]) == hostile.rstrip(b"\r\n")
    assert "<b>bold</b>" in answer.json["reason"] and "<b>" not in answer.body, "the reason is escaped"
    assert answer.headers["Content-Type"].startswith("application/json")
