"""on_end.webhook: the coordinator reports the end of a job by HTTP POST, also after a restart and for private runs."""

import http.server
import json
import signal
import threading

import harness
import pytest


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers with the next of `answers`, then with 200, and stores what it received."""

    received, answers = [], []

    def do_POST(self):  # the name is given by http.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, self.headers["Content-Type"], json.loads(body)))
        self.send_response(self.answers.pop(0) if self.answers else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver():
    class Own(Receiver):
        received, answers = [], []

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Own.url = f"http://127.0.0.1:{server.server_address[1]}/hook?token=1"
    yield Own
    server.shutdown()
    server.server_close()


def job_file(folder, url, program="true", ranks=1):
    return harness.write_job_file(folder / "job.yaml", {
        "name": "hooked", "command": {"argv": ["sh", "-c", program]}, "resources": {"ranks": ranks},
        "recovery": {"max_restarts": 0}, "on_end": {"webhook": url}})


def test_the_end_of_a_job_is_delivered_once_the_server_accepts_it(receiver, one_host):
    receiver.answers.append(503)
    job = one_host.submit_file(job_file(one_host.folder, receiver.url, "exit 3"))
    one_host.wait_for_end(job)

    harness.wait_until(lambda: len(receiver.received) == 2, "the second attempt")
    path, content_type, body = receiver.received[1]
    assert (path, content_type) == ("/hook?token=1", "application/json")
    assert (body["event"], body["job_id"], body["name"], body["state"]) == ("job_ended", job, "hooked", "FAILED")
    assert "exited with code 3" in body["reason"] and body["last_loss"] is None
    assert body["finished_s"] > body["started_s"]
    harness.wait_until(lambda: "its webhook was delivered after 2 attempts" in one_host.coordinator.output(),
                       "the coordinator logs a delivery after 2 attempts")


def test_a_webhook_that_was_not_delivered_is_delivered_by_the_next_coordinator(receiver, one_host):
    receiver.answers += [503] * 100
    job = one_host.submit_file(job_file(one_host.folder, receiver.url))
    harness.wait_until(lambda: receiver.received, "the first attempt")

    port = int(one_host.coordinator.address.rpartition(":")[2])
    one_host.coordinator.signal(signal.SIGKILL)
    one_host.coordinator.wait()
    receiver.answers.clear()
    one_host.start_coordinator(port=port)

    harness.wait_until(lambda: "its webhook was delivered" in one_host.coordinator.output(), "the delivery")
    assert {body["job_id"] for _, _, body in receiver.received} == {job}


def test_the_private_coordinator_of_a_run_delivers_the_webhook_before_it_exits(receiver, cluster):
    cluster.run_trainctl("run", job_file(cluster.folder, receiver.url))

    assert [body["state"] for _, _, body in receiver.received] == ["SUCCEEDED"]


def test_a_coordinator_without_webhooks_refuses_such_jobs(receiver, cluster):
    cluster.start_coordinator("--no-webhooks")
    done = cluster.trainctl("submit", job_file(cluster.folder, receiver.url), expect=2)

    assert "on_end.webhook: this coordinator sends no webhooks" in done.stderr
