"""The status page in a headless Chromium, if there is one: a job, hostile text, 1,000 jobs, and pictures."""

import re
import shutil
import subprocess

import pytest

import harness

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.long, pytest.mark.skipif(BROWSER is None, reason="there is no chromium")]
HOSTILE = "</script><img src=x onerror=\"document.title='pwned'\"><b id=pwned>bold</b>"


def browse(cluster, fragment, picture=None, size="1200,900", *flags):
    """The document that the page has become, as markup."""
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               f"--user-data-dir={cluster.folder}/browser", f"--window-size={size}",
               "--virtual-time-budget=3000", *flags]
    url = f"http://127.0.0.1:{cluster.metrics_port}/{fragment}"
    if picture:
        subprocess.run([*command, f"--screenshot={picture}", url], check=True, capture_output=True, timeout=120)
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5_000
    return subprocess.run([*command, "--dump-dom", url], check=True, capture_output=True, text=True, timeout=120).stdout


def test_a_job_is_drawn_and_hostile_text_is_shown_as_text(cluster):
    cluster.start_coordinator("--allow-local-users")
    cluster.start_worker("h1", slots=2)
    job = cluster.submit(train__steps=40, train__evaluate={"every_steps": 10, "batches": 2})
    cluster.wait_for_end(job)
    cancelled = cluster.submit(train__steps=1_000_000)
    cluster.wait_for_step(cancelled, 2)
    cluster.jobs.Cancel(cluster.stubs.service.CancelRequest(job_id=cancelled, reason=HOSTILE), timeout=5)
    cluster.wait_for_end(cancelled)

    shown = browse(cluster, f"#/jobs/{job}", cluster.folder / "job.png")
    hostile = browse(cluster, f"#/jobs/{cancelled}")

    assert re.search(r'<path d="M[^"]*L[^"]*" class="curve"', shown), "the loss curve is drawn"
    assert shown.count('class="evaluation"') == 4
    assert "SUCCEEDED" in shown and '<rect' in shown and ">h1<" in shown
    assert "&lt;/script&gt;&lt;img src=x" in hostile and "<b id=" not in hostile and "<img" not in hostile
    assert "<title>pwned" not in hostile


def test_a_thousand_jobs_are_listed(cluster):
    cluster.start_coordinator("--allow-local-users")
    first = cluster.submit()
    request = cluster.stubs.service.SubmitRequest(spec=cluster.get(first).job.spec)
    for index in range(999):
        request.spec.name = f"job-{index}"
        request.spec.checkpoint.dir = f"{cluster.folder}/runs/{index}"
        cluster.jobs.Submit(request, timeout=10)

    shown = browse(cluster, "", cluster.folder / "jobs.png", "420,800",
                   "--force-dark-mode", "--blink-settings=preferredColorScheme=0")

    assert shown.count('href="#/jobs/') == 1_000 and "1000 of 1000 jobs." in shown


def test_without_a_token_the_page_asks_for_it(cluster):
    cluster.start_coordinator()

    shown = browse(cluster, "")

    assert '<form id="login">' in shown and "the call has no token" in shown
