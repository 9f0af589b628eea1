"""The measurements of `./dev bench operate`. Each returns its figures; operate.py compares them with the bars.

The coordinator is real; hosts, watchers and submitters are processes of operate_clients.py. operate_memory.py has the
row `rss`, in which daemons and trainers are real, too.
"""

import contextlib
import dataclasses
import functools
import http.client
import json
import math
import os
import pathlib
import queue
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import operate_browser
import sides

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
sys.path.insert(0, str(sides.ROOT / "tests" / "cluster"))
import harness
import processes
import stubs

CLIENTS = sides.ROOT / "bench" / "operate_clients.py"
LIMIT_S = 120
RUNNING_JOBS = 200      # of `metrics`
PAGE_JOBS = 1000
PAGE_RUNNING = 100      # of PAGE_JOBS; they make steps, so that the list changes all the time
PAGE_INTERVAL_S = 0.83  # between steps; not a multiple of 0.2 s, the interval at which lists are sent
WATCHED_JOBS = 20
SUBMITTERS = 2          # processes
IN_FLIGHT = 16          # submissions of each at the same time
MEMORY_KINDS = 6        # that a rank of operate_clients.py reports
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
MEMORY_SERIES = "trainyard_rank_memory_bytes{"


@dataclasses.dataclass(frozen=True)
class Figure:
    """One number of a row. `bar` None: there is no limit that it must meet."""

    what: str
    value: float
    unit: str
    bar: float | None = None
    better: str = "lower"
    others: dict = dataclasses.field(default_factory=dict)


def percentile(samples, share):
    """The smallest sample such that at least this share of the samples are not larger."""
    return sorted(samples)[max(1, math.ceil(share * len(samples))) - 1]


@contextlib.contextmanager
def interrupts_deferred():
    """Signals take effect at the end of the block, when the stage knows each process that the block starts."""
    arrived = []
    before = [(number, signal.signal(number, lambda *_: arrived.append(True))) for number in INTERRUPTS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if arrived:
        raise KeyboardInterrupt


class Client:
    """A process of operate_clients.py. A thread reads its lines, so that the process never waits for the bench."""

    def __init__(self, role, setting):
        command = [sys.executable, str(CLIENTS), role, json.dumps(setting)]
        # In a session of its own, so that Ctrl-C reaches only the bench, which then closes the input of the process.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                         start_new_session=True)
        self._role, self._lines = role, queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put({"error": "the process has ended"})

    def next(self, limit_s=LIMIT_S):
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise sides.MeasurementFailed(f"the process '{self._role}' has printed nothing for {limit_s} s") from None
        if "error" in line:
            raise sides.MeasurementFailed(f"the process '{self._role}' failed: {line['error']}")
        return line

    def wait_for(self, condition, what, limit_s=LIMIT_S):
        """The first line for which the condition holds."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            line = self.next(max(0.1, deadline - time.monotonic()))
            if condition(line):
                return line
        raise sides.MeasurementFailed(f"waited {limit_s} s for: {what}")

    def drain(self):
        """The lines that have arrived since the last call."""
        return [self.next() for _ in range(self._lines.qsize())]

    def send_line(self):
        """The first line means begin, the second one stop."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def close(self):
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@functools.cache
def schema():
    """Returns the folder of the generated gRPC modules, which the client processes use, too, and the modules."""
    folder = tempfile.TemporaryDirectory(prefix="trainyard-stubs-")
    return folder, stubs.make(folder.name)


class Stage:
    """A coordinator with its clients. Its exit ends every process, also after errors and interrupts; a second Ctrl-C
    does not interrupt the exit. `config` is the text of the coordinator's configuration file."""

    def __init__(self, config=""):
        self._config = config

    def __enter__(self):
        processes.start_reaper()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the coordinator inherits it
        self._stubs_folder, self.schema = schema()
        self._closing = contextlib.ExitStack()
        # A browser that was killed a moment ago may still write files.
        folder = tempfile.TemporaryDirectory(prefix="trainyard-bench-", ignore_cleanup_errors=True)
        self.folder = pathlib.Path(self._closing.enter_context(folder))
        self.cluster = harness.Cluster(self.folder, self.schema)
        self._closing.callback(self.cluster.close)
        try:
            config = self.folder / "coordinator.yaml"
            config.write_text(self._config)
            flags = ["--config", config] if self._config else []
            with interrupts_deferred():
                self.coordinator = self.cluster.start_coordinator("--allow-local-users", *flags)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        before = [(number, signal.signal(number, signal.SIG_IGN)) for number in INTERRUPTS]
        try:
            self._closing.close()
        finally:
            for number, handler in before:
                signal.signal(number, handler)

    def client(self, role, **setting):
        with interrupts_deferred():
            client = Client(role, dict(setting, stubs=self._stubs_folder.name, address=self.coordinator.address))
            self._closing.callback(client.close)
        return client

    def browser(self, program):
        folder = self.folder / "browser"
        folder.mkdir()
        with interrupts_deferred():
            browser = operate_browser.Browser(program, folder)
            self._closing.callback(browser.close)
        browser.attach()
        return browser

    def hosts(self, count, slots, interval=1.0, traced_job=""):
        """Starts simulated hosts, and returns their process when all of them are attached."""
        cluster_id = self.cluster.server_info().cluster_id
        client = self.client("hosts", hosts=count, slots=slots, interval=interval, traced_job=traced_job,
                             cluster_id=cluster_id)
        client.wait_for(lambda line: "attached" in line, f"{count} simulated hosts are attached")
        return client

    def request(self, ranks=1):
        """A submission of a minimal job, which is not trained."""
        job = self.schema.job
        spec = job.JobSpec(name="bench")
        model = spec.train.model
        model.layers = model.heads = 1
        model.width = model.context = 8
        spec.train.data.text.append("/bench/data")
        spec.train.batch.global_size = ranks
        spec.train.steps = 1_000_000
        spec.resources.ranks = ranks
        spec.resources.device = job.DEVICE_CPU
        spec.recovery.max_restarts = 0
        return self.schema.service.SubmitRequest(spec=spec)

    def training(self, name, steps):
        """A submission of a job that is trained."""
        request = self.request()
        spec = request.spec
        spec.name, spec.checkpoint.dir = name, str(self.folder / name)
        spec.train.data.text[:] = [str(self.cluster.text)]
        spec.train.steps = steps
        spec.resources.threads_per_rank = 1
        return request

    def command(self, name, *argv):
        """A submission of a job that runs a command."""
        request = self.request()
        spec = request.spec
        spec.name = name
        spec.ClearField("train")
        spec.command.argv[:] = argv
        spec.command.workdir = str(self.folder)
        return request

    def submit_one(self, request):
        return self.cluster.jobs.Submit(request, timeout=LIMIT_S).job_id

    def submit(self, count, ranks=1):
        """The ids of `count` new jobs."""
        request, made = self.request(ranks), []
        for number in range(count):
            request.spec.name = f"bench-{number}"
            request.spec.checkpoint.dir = f"/bench/{number}"
            made.append(self.submit_one(request))
        return made

    def wait_for_running(self, count):
        service = self.schema.service
        request = service.ListRequest(page_size=1000, states=[service.JOB_STATE_RUNNING])
        harness.wait_until(lambda: len(self.cluster.jobs.List(request, timeout=LIMIT_S).jobs) >= count,
                           f"{count} jobs are running", LIMIT_S)

    def scrape(self):
        return scrape(self.cluster.metrics_port)


def scrape(port):
    """(seconds from the connection to the last byte, those to the first one, the text) of /metrics."""
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    first = time.monotonic() - began
    text = response.read()
    seconds = time.monotonic() - began
    connection.close()
    if response.status != 200:
        raise sides.MeasurementFailed(f"/metrics answered {response.status}")
    return seconds, first, text.decode()


def value_in(text, series):
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def resident_kib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)[1])


def measure_metrics(options):
    jobs = min(RUNNING_JOBS, options.hosts)
    ranks = options.hosts // jobs
    with Stage() as stage:
        stage.hosts(options.hosts, slots=1)
        stage.submit(jobs, ranks)
        stage.wait_for_running(jobs)
        # Waits until every rank has reported its memory, because those series are most of the answer.
        expected = MEMORY_KINDS * jobs * ranks
        harness.wait_until(lambda: stage.scrape()[2].count(MEMORY_SERIES) == expected,
                           "the memory of every rank is shown", LIMIT_S)
        scrapes = []
        for _ in range(options.scrapes):
            scrapes.append(stage.scrape())
            time.sleep(0.37)  # so that scrapes fall into all parts of the second between reports
        resident = resident_kib(stage.coordinator.pid)
    seconds, first, texts = zip(*scrapes)
    text = texts[-1]
    attached = value_in(text, 'trainyard_hosts{state="attached"}')
    running = value_in(text, 'trainyard_jobs{state="running"}')
    if (attached, running) != (options.hosts, jobs):
        raise sides.MeasurementFailed(f"at the end {attached:.0f} of {options.hosts} hosts were attached and "
                                      f"{running:.0f} of {jobs} jobs were running")
    series = sum(not line.startswith("#") for line in text.splitlines())
    what = f"/metrics, {options.hosts:,} hosts, {jobs} jobs of {ranks} rank{'s' if ranks > 1 else ''}"
    return [Figure(f"{what}: median of {options.scrapes} scrapes", 1e3 * statistics.median(seconds), "ms", 100),
            Figure(f"{what}: longest of {options.scrapes} scrapes", 1e3 * max(seconds), "ms", 100, others={
                "median_to_first_byte_ms": 1e3 * statistics.median(first),
                "bytes": statistics.median(len(one) for one in texts), "series": series,
                "coordinator_rss_mib": resident / 1024})]


def measure_gets(stage, jobs, count):
    """The seconds of Get: `count` calls, one after the other."""
    client = stage.client("get", jobs=jobs, count=count)
    client.next()
    client.send_line()
    return client.next()["seconds"]


def measure_submissions(stage, jobs, count):
    """(submissions per second, the seconds of each, the seconds of Get meanwhile)"""
    request = stage.request().SerializeToString().hex()
    submitters = [stage.client("submit", prefix=f"submit-{number}", count=count // SUBMITTERS, in_flight=IN_FLIGHT,
                               request=request) for number in range(SUBMITTERS)]
    reader = stage.client("get", jobs=jobs, count=0, pause=0.01)
    for client in (*submitters, reader):
        client.next()
    for client in (reader, *submitters):
        client.send_line()
    done = [client.next() for client in submitters]
    reader.send_line()
    seconds = [one for line in done for one in line["seconds"]]
    took = max(line["ended"] for line in done) - min(line["began"] for line in done)
    return len(seconds) / took, seconds, reader.next()["seconds"]


def measure_submit(options):
    with Stage() as stage:
        jobs = stage.submit(WATCHED_JOBS)
        stage.hosts(1, slots=WATCHED_JOBS)
        stage.wait_for_running(WATCHED_JOBS)
        watchers = stage.client("watch", watchers=options.watchers, jobs=jobs)
        watchers.wait_for(lambda line: line["watching"] == options.watchers, f"{options.watchers} watchers read")
        gets = measure_gets(stage, jobs, options.gets)
        rate, seconds, gets_meanwhile = measure_submissions(stage, jobs, options.submissions)
        time.sleep(1)
        events = watchers.drain()[-1]["events"]
        if events < options.watchers:
            raise sides.MeasurementFailed(f"{options.watchers} watchers have received only {events} events")
    what = f"{options.watchers} watchers"
    return [Figure(f"submissions per second under {what}", rate, "/s", 1000, "higher", {
                "jobs": len(seconds), "submit_p99_ms": 1e3 * percentile(seconds, 0.99),
                "client_processes": SUBMITTERS, "in_flight": SUBMITTERS * IN_FLIGHT}),
            Figure(f"Get under {what}, p99 of {len(gets):,}", 1e3 * percentile(gets, 0.99), "ms", 20, others={
                "p50_ms": 1e3 * statistics.median(gets), "max_ms": 1e3 * max(gets),
                "p99_while_jobs_are_submitted_ms": 1e3 * percentile(gets_meanwhile, 0.99)})]


# Runs before the page's own script. `shown`: the time at which a frame with all rows was drawn, from the begin of the
# navigation. `steps`: (step, time) of each frame in which the row of the job has shown a new step.
PAGE_SCRIPT = """
(() => {
  const found = window.trainyardBench = {shown: null, steps: []};
  const afterFrame = (then) => requestAnimationFrame(() => setTimeout(then));
  const observe = (cell) => new MutationObserver(() => {
    const step = Number(cell.textContent);
    afterFrame(() => found.steps.push([step, (performance.timeOrigin + performance.now()) / 1000]));
  }).observe(cell, {childList: true, characterData: true, subtree: true});
  const look = () => {
    if (document.querySelectorAll("main tbody tr").length < %d) return requestAnimationFrame(look);
    afterFrame(() => {
      found.shown = performance.now() / 1000;
      const titles = [...document.querySelectorAll("main th")].map((title) => title.textContent);
      const row = document.querySelector('main a[href="#/jobs/%s"]').closest("tr");
      observe(row.children[titles.indexOf("Step")]);
    });
  };
  requestAnimationFrame(look);
})();
"""
FIRST_PAINT = 'performance.getEntriesByName("first-contentful-paint")[0]?.startTime / 1000'


def load_page(browser, url):
    """Opens the page anew. (seconds until all jobs were drawn, seconds until the first paint or None)"""
    browser.open("about:blank")
    browser.open(url)
    shown = harness.wait_until(lambda: browser.evaluate("window.trainyardBench?.shown"), "the page shows every job",
                               LIMIT_S)
    return shown, browser.evaluate(FIRST_PAINT)


def delays_of(reported, shown):
    """Seconds from each reported (step, time) until the page has shown that step or a later one; steps that were
    reported before the first or after the last one shown do not count."""
    delays = []
    for step, at in reported:
        times = [when for number, when in shown if number >= step]
        if times and shown[0][0] <= step:
            delays.append(times[0] - at)
    return delays


def measure_page(options):
    program = operate_browser.find()
    if program is None:
        raise sides.MeasurementFailed("there is no chromium or google-chrome in PATH; install Debian's package "
                                      "chromium")
    with Stage() as stage:
        jobs = stage.submit(PAGE_JOBS)
        observed = jobs[PAGE_RUNNING // 2]
        hosts = stage.hosts(1, slots=PAGE_RUNNING, interval=PAGE_INTERVAL_S, traced_job=observed)
        stage.wait_for_running(PAGE_RUNNING)
        browser = stage.browser(program)
        browser.run_at_start(PAGE_SCRIPT % (PAGE_JOBS, observed))
        url = f"http://127.0.0.1:{stage.cluster.metrics_port}/"
        load_page(browser, url)  # the first one starts processes of the browser
        loads = [load_page(browser, url) for _ in range(options.loads)]
        hosts.drain()
        time.sleep(options.seconds)
        shown = browser.evaluate("window.trainyardBench.steps")
        reported = [(line["step"], line["at"]) for line in hosts.drain() if line.get("step")]
    delays = delays_of(reported, shown)
    if not delays:
        raise sides.MeasurementFailed(f"the page has shown none of {len(reported)} steps in {options.seconds} s")
    times = [load[0] for load in loads]
    first = [load[1] for load in loads if load[1] is not None]
    return [Figure(f"status page: opened → {PAGE_JOBS:,} jobs painted, median of {len(loads)}",
                   statistics.median(times), "s", 1, others={
                       "max_s": max(times), "first_contentful_paint_s": statistics.median(first) if first else None}),
            Figure(f"step report → the page shows it, median of {len(delays)}", statistics.median(delays), "s", 1,
                   others={"p90_s": percentile(delays, 0.9), "max_s": max(delays)})]
