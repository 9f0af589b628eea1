"""The status page in a headless Chromium, if there is one: a job that runs, its output, actions, hostile text, a
restart of the coordinator, 1,000 jobs, 5,000 hosts, and pictures. With TRAINYARD_PICTURES=FOLDER the pictures of the
documentation are written there."""

import base64
import os
import pathlib
import sys
import time

import pytest

import fake_hosts
import harness
import tokens

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import operate_browser

PROGRAM = operate_browser.find()
pytestmark = [pytest.mark.long, pytest.mark.skipif(PROGRAM is None, reason="there is no chromium")]
HOSTILE = "</script><img src=x onerror=\"document.title='pwned'\"><b id=pwned>bold</b>\u202e"
PICTURES = os.environ.get("TRAINYARD_PICTURES")
# Runs before the page's own scripts, and records errors and what the page's content security policy blocks.
OBSERVE = """
window.found = {violations: [], errors: []};
document.addEventListener("securitypolicyviolation", (event) => found.violations.push(event.violatedDirective));
window.addEventListener("error", (event) => found.errors.push(event.message));
window.addEventListener("unhandledrejection", (event) => found.errors.push(String(event.reason)));
"""


class Page:
    def __init__(self, cluster):
        self.cluster = cluster
        self.browser = operate_browser.Browser(PROGRAM, cluster.folder)
        self.browser.attach()
        self.browser.run_at_start(OBSERVE)
        self.look()

    def look(self, width=1200, height=900, dark=False):
        self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                          mobile=width < 600)
        self.browser.call("Emulation.setEmulatedMedia",
                          features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, fragment="", token=None):
        url = f"http://127.0.0.1:{self.cluster.metrics_port}/"
        self.browser.open("about:blank")
        self.browser.open(url + fragment)
        if token:
            self.wait("document.getElementById('login')?.hidden === false", "the page asks for a token")
            self.run(f"document.getElementById('token').value = '{token}'")
            self.run("document.querySelector('#login button').click()")

    def run(self, script):
        return self.browser.evaluate(script)

    def wait(self, condition, what, seconds=60):
        try:
            return harness.wait_until(lambda: self.run(f"Boolean({condition})"), what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; the page:\n{self.text()[:800]}") from None

    def text(self):
        return self.run("document.body?.innerText") or ""

    def click(self, text):
        self.run(f"[...document.querySelectorAll('button')].find((node) => node.textContent === '{text}').click()")

    def press(self, key, **more):
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=key, **(more if kind == "keyDown" else {}))

    def picture(self, name):
        data = base64.b64decode(self.browser.call("Page.captureScreenshot", format="png")["data"])
        (self.cluster.folder / name).write_bytes(data)
        if PICTURES:
            (pathlib.Path(PICTURES) / name).write_bytes(data)
        assert data.startswith(b"\x89PNG") and len(data) > 5_000

    def assert_clean(self):
        assert self.run("JSON.stringify([found.violations, found.errors])") == "[[],[]]"


@pytest.fixture
def page(cluster):
    port = harness.free_port()
    path = tokens.path_of(f"127.0.0.1:{port}")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    cluster.start_coordinator("--token-file", path, "--viewer-token-file", cluster.folder / "viewers", port=port)
    page = Page(cluster)
    page.token = path.read_text().strip()
    yield page
    page.browser.close()


def restart(cluster):
    port, metrics_port = int(cluster.coordinator.address.rpartition(":")[2]), cluster.metrics_port
    cluster.coordinator.signal(9)
    cluster.coordinator.wait()
    cluster.start_coordinator("--token-file", tokens.path_of(cluster.coordinator.address), "--metrics",
                              f"127.0.0.1:{metrics_port}", port=port)
    cluster.metrics_port = metrics_port


def test_a_running_job_is_shown_live_operated_and_survives_a_restart_of_the_coordinator(page):
    cluster = page.cluster
    cluster.start_worker("h1", slots=2)
    job = cluster.submit(name="tiny-llama", train__steps=1_000_000, train__evaluate={"every_steps": 50, "batches": 2},
                         checkpoint__every_steps=200)
    page.open(f"#/jobs/{job}", page.token)
    page.wait("document.querySelectorAll('svg .curve').length === 1", "the loss curve is drawn")
    page.wait("document.querySelectorAll('svg .evaluation').length >= 2", "evaluations are drawn")

    # A step is on the page well within a second after it was reported.
    delays = []
    for _ in range(5):
        step = cluster.get(job).job.last_step + 1
        cluster.wait_for_step(job, step)
        begin = time.monotonic()
        page.wait("Number([...document.querySelectorAll('.curve-picture text')].at(-1)?.textContent.split(' ')[1])"
                  f" >= {step}", "the step is shown")
        delays.append(time.monotonic() - begin)
    assert sorted(delays)[2] < 0.8, delays
    page.wait("document.querySelectorAll('[aria-label=Checkpoints] tbody tr').length >= 1", "a checkpoint is listed")
    page.click("Show output")
    page.wait("document.querySelectorAll('.output span').length > 3", "the output of rank 0 is shown")
    page.look(1200, 1900)
    page.picture("page-job.png")

    restart(cluster)
    step = page.run("Number([...document.querySelectorAll('.curve-picture text')].at(-1)?.textContent.split(' ')[1])")
    page.wait("Number([...document.querySelectorAll('.curve-picture text')].at(-1)?.textContent.split(' ')[1])"
              f" > {step} + 3", "steps are shown again")
    page.click("Pause")
    page.wait("document.getElementById('confirm').open", "the dialog is open")
    page.run("document.getElementById('confirm-user').value = 'anna'")
    page.run("document.getElementById('confirm-reason').value = 'for the night'")
    page.picture("page-dialog.png")
    page.click("Pause job")
    page.wait("document.querySelector('dd')?.textContent === 'PAUSED'", "the job is shown as paused")
    notices = [event.notice.text for event in cluster.jobs.ListEvents(
        cluster.stubs.service.ListEventsRequest(job_id=job), timeout=60).events]
    assert any('who gave the name "anna"' in text for text in notices)
    page.wait("document.body.innerText.includes('who gave the name')", "the record is shown")
    page.click("Resume")
    page.wait("document.getElementById('confirm').open", "the dialog is open")
    page.press("Escape", code="Escape", windowsVirtualKeyCode=27)
    page.wait("!document.getElementById('confirm').open", "Escape closes the dialog")
    page.assert_clean()


def test_viewers_see_no_actions_and_hostile_text_stays_text(page):
    cluster = page.cluster
    cluster.start_worker("h1", slots=1)
    script = cluster.folder / "print.sh"
    script.write_text("printf '\\033]0;pwned\\007\\033[2J%s\\n' \"$1\"\n")
    job = cluster.jobs.Submit(cluster.stubs.service.SubmitRequest(spec=cluster.stubs.job.JobSpec(
        name="hostile", command={"argv": ["sh", str(script), HOSTILE], "workdir": "/tmp"}, resources={"ranks": 1})),
        timeout=60).job_id
    cluster.wait_for_end(job)
    page.open(f"#/jobs/{job}/output/0", (cluster.folder / "viewers").read_text().strip())
    page.wait("document.querySelectorAll('.output span').length === 1", "the output is shown")

    output = page.run("document.querySelector('.output').textContent")
    assert output == "\\x1b]0;pwned\\x07\\x1b[2J" + HOSTILE.replace("\u202e", "\\u202e") + "\n"
    waiting = cluster.submit(resources__ranks=4)
    cluster.jobs.Cancel(cluster.stubs.service.CancelRequest(job_id=waiting, reason=HOSTILE), timeout=60)
    page.run(f"location.hash = '#/jobs/{waiting}'")
    page.wait("document.querySelector('dd')?.textContent === 'CANCELLED'", "the other job is shown")
    assert HOSTILE.replace("\u202e", "\\u202e") in page.run("document.querySelector('dl').textContent")
    assert page.run("document.querySelectorAll('img, #pwned').length") == 0 and page.run("document.title") != "pwned"
    assert page.run("document.getElementById('access').textContent") == "read-only"
    assert "Cancel" not in page.run("[...document.querySelectorAll('button')].map((node) => node.textContent).join()")
    page.assert_clean()


def test_a_thousand_jobs_are_listed_on_a_narrow_dark_screen_and_found_with_the_keyboard(page):
    cluster = page.cluster
    first = cluster.submit()
    request = cluster.stubs.service.SubmitRequest(spec=cluster.get(first).job.spec)
    for index in range(999):
        request.spec.name = f"job-{index}"
        request.spec.checkpoint.dir = f"{cluster.folder}/runs/{index}"
        cluster.jobs.Submit(request, timeout=60)
    page.open("", page.token)
    page.wait("document.querySelectorAll('a[href^=\"#/jobs/\"]').length === 1000", "all jobs are listed")
    page.picture("page-jobs.png")
    page.look(380, 800, dark=True)
    page.picture("page-jobs-narrow.png")
    assert page.run("document.documentElement.scrollWidth <= innerWidth"), "the page itself scrolls sideways"
    page.press("/", text="/")
    page.browser.call("Input.insertText", text="job-99")
    page.wait("document.querySelector('main .quiet')?.textContent.startsWith('10 of ')", "the list is filtered")
    page.press("Escape")
    page.run("document.activeElement.blur()")
    page.press("e", text="e")
    page.wait("location.hash === '#/events' && document.querySelectorAll('tbody tr').length > 100", "events are shown")
    page.assert_clean()


def test_five_thousand_hosts_are_shown_by_pages_and_all_are_found(page):
    fake_hosts.register(page.cluster, [f"h{index:05}" for index in range(5_000)])
    place = "document.querySelector('[aria-label=\"Pages of hosts\"] span').textContent"
    page.open("#/hosts", page.token)
    page.wait("document.querySelectorAll('tbody tr').length === 500", "the first page is shown")
    page.wait(f"{place} === 'hosts 1 to 500 of 5000 are shown'", "all hosts have arrived")
    page.click("Next")
    page.wait(f"{place} === 'hosts 501 to 1000 of 5000 are shown'", "the second page is shown")
    assert page.run("document.querySelector('tbody td').textContent") == "h00500"
    page.press("/", text="/")
    page.browser.call("Input.insertText", text="h0499")
    page.wait("document.querySelector('main .quiet')?.textContent === '10 of 5000 hosts.'", "the list is filtered")
    assert page.run("document.querySelector('[aria-label=\"Pages of hosts\"]').hidden")
    assert page.run("document.querySelectorAll('tbody tr').length") == 10
    page.press("Escape")
    page.wait(f"{place} === 'hosts 1 to 500 of 5000 are shown'", "Escape empties the filter")
    cordon = page.cluster.stubs.service.SetHostRequest(name="h00001", action="ACTION_CORDON")
    page.cluster.jobs.SetHost(cordon, timeout=60)
    page.wait("document.querySelectorAll('tbody tr')[1].textContent.includes('Uncordon')", "a change is shown")
    page.assert_clean()


def test_without_a_token_the_page_asks_for_it_and_shows_nothing(page):
    page.open()
    page.wait("document.getElementById('login')?.hidden === false", "the page asks for a token")
    assert "the call has no token" in page.text() and page.run("document.activeElement.id") == "token"
    assert page.run("document.getElementById('content').hidden")


def test_names_and_tokens_that_no_header_can_hold_are_named_and_the_skip_link_keeps_the_view(page):
    page.open()
    page.wait("document.getElementById('login')?.hidden === false", "the page asks for a token")
    page.run(f"document.getElementById('token').value = '{page.token}\u200b\u2026'")
    page.run("document.querySelector('#login button').click()")
    page.wait("document.getElementById('login-reason').textContent.includes('copy it')", "the token is refused")

    job = page.cluster.submit()
    page.open(f"#/jobs/{job}", page.token)
    page.wait("[...document.querySelectorAll('button')].some((node) => node.textContent === 'Cancel')",
              "actions are offered")
    page.run("document.querySelector('.skip').click()")
    assert page.run("location.hash") == f"#/jobs/{job}" and page.run("document.activeElement.id") == "content"
    page.click("Cancel")
    page.wait("document.getElementById('confirm').open", "the dialog is open")
    page.run("document.getElementById('confirm-user').value = '\u0141ukasz'")
    page.click("Cancel job")
    page.wait("document.querySelector('#confirm [role=alert]').textContent.includes('ASCII')", "the name is refused")
    assert page.cluster.get(job).job.finished_unix_ms == 0
    page.assert_clean()
