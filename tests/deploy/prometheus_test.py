"""Alerts, dashboards and metrics as Prometheus sees them: the rules with promtool, the queries of the dashboards with a
server that has scraped a real run."""

import json
import math
import os
import pathlib
import re
import signal
import time
import urllib.request
import xml.etree.ElementTree

import pytest
import yaml

import draw_dashboard
import harness
import prometheus

DEPLOY = harness.ROOT / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
ALERT_TESTS = harness.ROOT / "tests" / "deploy" / "alerts_test.yaml"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


def alerts():
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def queries(dashboard):
    """[(title of the panel, query, text of the legend)] of a dashboard."""
    return [(panel["title"], target["expr"], target["legendFormat"])
            for panel in dashboard["panels"] for target in panel.get("targets", [])]


def documented_metrics():
    """The names of all series in docs/metrics.md; a histogram has the series _bucket, _sum and _count."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", (harness.ROOT / "docs" / "metrics.md").read_text(), re.M)
    series = {name for name, kind in rows if kind != "histogram"}
    return series | {name + suffix for name, kind in rows if kind == "histogram"
                     for suffix in ("_bucket", "_sum", "_count")}


def test_alerts_fire_when_they_should_and_not_before():
    prometheus.promtool("check", "rules", ALERTS)
    prometheus.promtool("test", "rules", ALERT_TESTS)


def test_every_alert_has_a_test_a_section_for_operators_and_a_severity():
    tested = set(re.findall(r'alertname="(\w+)"', ALERT_TESTS.read_text()))
    sections = re.findall(r"^## (Trainyard\w+)$", (harness.ROOT / "docs" / "alerts.md").read_text(), re.M)
    names = [rule["alert"] for rule in alerts()]

    assert len(names) == len(set(names))
    assert set(names) == tested
    assert sections == names
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]


def test_alerts_and_dashboards_use_only_documented_metrics_and_the_names_of_the_scrape_jobs():
    used = [rule["expr"] for rule in alerts()]
    for path in DASHBOARDS:
        used += [query for _, query, _ in queries(json.loads(path.read_text()))]
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]

    names = {name for query in used for name in re.findall(r"\btrainyard_\w+", query)}
    jobs = {job for query in used for job in re.findall(r'\bjob="([^"]+)"', query)}

    assert not names - documented_metrics()
    assert jobs == {job["job_name"] for job in scraped}


def test_the_configuration_of_prometheus_is_valid():
    prometheus.promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yaml")


@pytest.fixture
def scraped_run(cluster):
    """A cluster with a job that has saved and lost a trainer, and a Prometheus server that has scraped it."""
    cluster.start_coordinator()
    ports = [harness.free_port() for _ in range(2)]
    targets = {"trainyard-coordinator": [f"127.0.0.1:{cluster.metrics_port}"],
               "trainyard-worker": [f"127.0.0.1:{port}" for port in ports]}
    for number, port in enumerate(ports, 1):
        cluster.start_worker(f"h{number}", 1, "--metrics", f"127.0.0.1:{port}", "--health", "")
    with prometheus.running(cluster.folder, targets) as server:
        job = cluster.submit(train__steps=1_000_000, checkpoint__every_steps=200)
        cluster.wait_for_step(job, 400)
        os.kill(cluster.get(job).pid_of(1), signal.SIGKILL)
        harness.wait_until(lambda: server.query("trainyard_failures_total > 0"), "the failure is counted")
        harness.wait_until(lambda: server.query(f'changes(trainyard_job_step{{job_id="{job}"}}[5s]) > 2'),
                           "the job makes steps again")
        # Speeds of ranks are means over at least ten seconds.
        seen = f'count(count_over_time(trainyard_rank_wait_share{{job_id="{job}"}}[20s]) >= 8) == 2'
        harness.wait_until(lambda: server.query(seen), "the speed of both ranks is known", 60)
        yield server, job


def problems_of_queries(server, job, dashboard):
    """Sentences about the queries that have no result, lack a label of their legend, or give only NaN."""
    # Grafana replaces these; a rate interval is four scrape intervals.
    variables = {"$job": job, "$__rate_interval": "4s"}
    for title, query, legend in queries(dashboard):
        for name, value in variables.items():
            query = query.replace(name, value)
        series = server.query(query)
        missing = {label for labels, _ in series for label in re.findall(r"{{(\w+)}}", legend) if label not in labels}
        if not series:
            yield f"{title}: {query} has no result"
            continue
        # The alternative `or vector(0)` gives a series without labels on purpose.
        if missing and "vector(0)" not in query:
            yield f"{title}: {query} lacks the labels {sorted(missing)} of its legend"
        if not any(value == value for _, value in series):
            yield f"{title}: {query} is not a number"


def draw(server, job):
    """Draws the dashboards. With TRAINYARD_PICTURES=docs/images, keeps the pictures there."""
    variables = {"$job": job, "$__rate_interval": "4s"}
    end = math.ceil(time.time())
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        picture = draw_dashboard.drawn(server, dashboard, variables, (end - 45, end, 1))
        xml.etree.ElementTree.fromstring(picture)
        assert "no data" not in picture, path.stem
        assert picture.count("<path") > 2 * len(dashboard["panels"])
        if folder := os.environ.get("TRAINYARD_PICTURES"):
            (pathlib.Path(folder) / f"dashboard-{path.stem}.svg").write_text(picture)


@pytest.mark.long
def test_in_a_real_run_every_query_has_a_result_and_promtool_accepts_all_metrics(scraped_run):
    server, job = scraped_run
    assert len(DASHBOARDS) == 2

    problems = [f"{path.stem}: {problem}" for path in DASHBOARDS
                for problem in problems_of_queries(server, job, json.loads(path.read_text()))]

    assert not problems, "\n".join(problems)
    draw(server, job)
    assert list(problems_of_queries(server, "no-such-job", json.loads(DASHBOARDS[1].read_text())))
    for target in server.get("targets", state="active")["activeTargets"]:
        text = urllib.request.urlopen(target["scrapeUrl"], timeout=60).read().decode()
        assert "trainyard_" in text
        prometheus.promtool("check", "metrics", stdin=text)


def test_dashboards_have_unique_names_and_panels_that_do_not_overlap():
    dashboards = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert len({dashboard["uid"] for dashboard in dashboards}) == len(dashboards) == 2
    for dashboard in dashboards:
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
        places = [panel["gridPos"] for panel in dashboard["panels"]]
        cells = [(place["x"] + x, place["y"] + y) for place in places
                 for x in range(place["w"]) for y in range(place["h"])]
        assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
        variables = {variable["name"] for variable in dashboard["templating"]["list"]}
        named = set(re.findall(r"\$\{?(?!__)(\w+)", json.dumps(dashboard)))
        assert named <= variables, f"{dashboard['title']} uses undefined variables {named - variables}"
