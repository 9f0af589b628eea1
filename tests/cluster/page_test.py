"""The status page of a real coordinator: its data, who may read it, and requests that are not welcome."""

import http.client
import json
import socket

import harness
import tokens

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e \"'&"


def ask(cluster, path, token=None, **headers):
    """The status, the headers and the body of a GET request."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.metrics_port, timeout=10)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response.status, response.headers, response.read().decode()


def data(cluster, path):
    status, _, body = ask(cluster, f"/api/v1/{path}", tokens.read(cluster.coordinator.address))
    assert status == 200, body
    return json.loads(body)


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
    cluster.jobs.Cancel(cluster.stubs.service.CancelRequest(job_id=job, reason=HOSTILE), timeout=5)
    token = tokens.read(cluster.coordinator.address)

    for path in ("jobs", f"jobs/{job}", f"jobs/{job}/steps", "hosts", "events", "info", "no-such-path"):
        assert ask(cluster, f"/api/v1/{path}")[0] == 401
        assert ask(cluster, f"/api/v1/{path}", "0" * len(token))[0] == 401
        assert token not in ask(cluster, f"/api/v1/{path}")[2]
    status, headers, body = ask(cluster, f"/api/v1/jobs/{job}", token)
    page_status, page_headers, page = ask(cluster, "/")

    assert status == 200 and HOSTILE in json.loads(body)["reason"]
    assert headers["Content-Type"].startswith("application/json") and headers["X-Content-Type-Options"] == "nosniff"
    assert page_status == 200 and "default-src 'none'" in page_headers["Content-Security-Policy"]
    assert job not in page and token not in page
    assert ask(cluster, f"/api/v1/jobs/{job}", token, **{"If-None-Match": headers["ETag"]})[0] == 304
    assert ask(cluster, "/api/v1/jobs?token=" + token, token)[0] == 400
    assert 'method="page_jobs"' not in ask(cluster, "/metrics")[2]
    assert 'code="UNAUTHENTICATED",method="page"' in ask(cluster, "/metrics")[2]


def test_requests_that_are_not_welcome_are_refused_and_the_metrics_continue(cluster):
    cluster.start_coordinator()
    token = tokens.read(cluster.coordinator.address)

    def send(text):
        with socket.create_connection(("127.0.0.1", cluster.metrics_port), timeout=10) as connection:
            try:
                connection.sendall(text)
                connection.shutdown(socket.SHUT_WR)
                return connection.makefile("rb").read().split(b"\r\n")[0].decode()
            except OSError:  # it was closed before all of the text was read
                return ""

    assert ask(cluster, "/api/v1/jobs", token, Host="evil.example")[0] == 421
    assert ask(cluster, "/api/v1/jobs/nosuchjob", token)[0] == 404
    assert "405" in send(b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert "400" in send(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
    assert "400" in send(b"\x00\xff\xfe garbage\r\n\r\n")
    assert send(b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000) in ("", "HTTP/1.1 431 Request Header Fields Too Large")
    assert ask(cluster, "/metrics")[0] == 200 and cluster.coordinator.alive()


def test_without_a_token_the_page_is_not_more_open_than_the_api(cluster):
    cluster.start_coordinator("--allow-local-users")
    assert ask(cluster, "/api/v1/jobs")[0] == 200
    cluster.close()
    port = harness.free_port()
    cluster.start_coordinator("--allow-local-users", "--metrics", f"0.0.0.0:{port}")
    cluster.metrics_port = port

    status, _, body = ask(cluster, "/api/v1/jobs")

    assert status == 403 and "--token-file" in json.loads(body)["message"]


def test_no_page_serves_the_metrics_only(cluster):
    cluster.start_coordinator("--no-page")
    token = tokens.read(cluster.coordinator.address)

    assert ask(cluster, "/")[0] == 404 and ask(cluster, "/api/v1/jobs", token)[0] == 404
    assert ask(cluster, "/metrics")[0] == 200
