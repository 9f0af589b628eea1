"""The row `rss` of `./dev bench operate`: whether the memory of coordinator and daemons grows while jobs, watchers and
scrapes come and go.

Memory is sampled at rest: once per period the clients finish what they do and begin nothing new, because streams and
jobs that are under way need a different amount of memory at each moment. Only two jobs continue: one makes steps, the
other prints lines.

What is limited is filled during the warm-up, so that only a leak grows later: jobs are submitted and cancelled until
the events of the cluster and the ids of deleted jobs have reached their limits, a long job makes steps until its
history is full, and short jobs replace the cancelled ones in the history of finished jobs. An allocator keeps what the
busiest moment needed, so the warm-up also has more visitors than the measurement, and short jobs on all slots.
"""

import collections
import contextlib
import dataclasses
import http.client
import os
import pathlib
import re
import signal
import sys
import threading
import time

import operate_rows
import sides
import trends
from operate_rows import Figure, harness
from operate_visitors import REPORT_S

FINISHED_JOBS = 20      # that the coordinator keeps; the default is 1,000, which short jobs would need hours to fill
DAEMONS = {"h1": 3, "h2": 3}  # slots
SHORT_JOBS = 2          # at a time
VISITORS = 3            # of each kind of stream at a time
WARM_VISITORS = 6       # in addition to VISITORS, until the warm-up ends
WARM_PAUSE_S = 0.5      # the mean time between two short jobs of a slot in the warm-up
SETTLE_SHARE = 0.1      # of the warm-up, after its additional clients have ended
FILLS_IN_FLIGHT = 16
FILL_RANKS = 1000
LOG_BYTES = 65_536      # of the output of a rank, which a daemon keeps; the smallest limit that it accepts
KINDS = {"rss": "RSS", "anonymous": "anonymous part of RSS", "allocated": "allocated memory"}
REST_EVERY_S = 60       # from the end of one rest to the beginning of the next
REST_LIMIT_S = 120      # the longest wait until the clients are at rest
REST_SAMPLES = 3
UNDER_WAY = ("visits_under_way", "jobs_under_way")  # reported by clients; all other numbers that they report only grow
PACE_S = 0.2            # in each period the long job's trainer is stopped and continued once
# Fills its log, which the daemon keeps at LOG_BYTES, and then prints five lines per second.
COMMAND = f"seq {LOG_BYTES}; while :; do echo a line of output; sleep 0.2; done"


def log(text):
    print(f"bench: rss: {text}", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Sample:
    """Memory in KiB, and the other numbers that a leak would increase."""

    time_s: float
    rss: int
    anonymous: int
    allocated: float
    threads: int
    descriptors: int


def allocated_kib(port):
    """What the process that serves /metrics on this port has allocated and not freed."""
    try:
        _, _, text = operate_rows.scrape(port)
    except (OSError, http.client.HTTPException) as error:
        raise sides.MeasurementFailed(f"/metrics on port {port}: {error}") from error
    value = operate_rows.value_in(text, "process_allocated_memory_bytes")
    if value == 0:
        raise sides.MeasurementFailed(f"/metrics on port {port} has no process_allocated_memory_bytes")
    return value / 1024


def sample_of(program, port, time_s):
    status = pathlib.Path(f"/proc/{program.pid}/status").read_text()
    found = [re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE) for name in ("VmRSS", "RssAnon", "Threads")]
    if None in found:  # a process that has exited has no memory
        raise sides.MeasurementFailed(f"{program.log.name} has ended; its output:\n{program.output()[-2000:]}")
    rss, anonymous, threads = (int(one[1]) for one in found)
    return Sample(time_s, rss, anonymous, allocated_kib(port), threads, len(os.listdir(f"/proc/{program.pid}/fd")))


class Pace:
    """Stops and continues a process, so that it runs only for a share of the time, until the block ends."""

    def __init__(self, pid, share):
        self._pid, self._share, self._end = pid, share, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        if self._share < 1:
            self._thread.start()
        return self

    def __exit__(self, *unused):
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self):
        with contextlib.suppress(ProcessLookupError):
            while not self._end.is_set():
                os.kill(self._pid, signal.SIGSTOP)
                self._end.wait(PACE_S * (1 - self._share))
                os.kill(self._pid, signal.SIGCONT)
                self._end.wait(PACE_S * self._share)


class Load:
    """The jobs and clients of a stage, and what they have done so far."""

    def __init__(self, stage, options):
        self.stage, self.options = stage, options
        self.counts, self.workers, self.clients, self.warm_clients = {}, {}, [], []
        self._rest = stage.folder / "rest"

    def start(self):
        stage, cluster = self.stage, self.stage.cluster
        config = stage.folder / "worker.yaml"
        config.write_text(f"log_bytes_per_rank: {LOG_BYTES}\n")
        for name, slots in DAEMONS.items():
            port = harness.free_port()
            with operate_rows.interrupts_deferred():
                worker = cluster.start_worker(name, slots, "--config", config, "--metrics", f"127.0.0.1:{port}",
                                              "--health", "")
            self.workers[name] = (worker, port)
        long = stage.training("long", 100_000_000)
        # On a busy machine a trainer that may run for a tenth of the time can seem to hang.
        long.spec.recovery.on_hang = stage.schema.job.ON_HANG_NOTIFY
        self.job = stage.submit_one(long)
        self.talker = stage.submit_one(stage.command("talker", "/bin/sh", "-c", COMMAND))
        cluster.wait_for_step(self.job, 10)
        short = stage.training("short", 200).SerializeToString().hex()
        rest = str(self._rest)
        visits = {"job": self.job, "talker": self.talker, "after_step": 10, "http": cluster.metrics_port, "rest": rest,
                  "metrics": [cluster.metrics_port, *(port for _, port in self.workers.values())]}
        (stage.folder / "warm-up").mkdir()
        self.warm_clients = [
            # Its `kinds` do not include "cancelled", because this client may be closed before it cancels such a job.
            stage.client("short-jobs", at_a_time=sum(DAEMONS.values()), pause=WARM_PAUSE_S, request=short,
                         folder=str(stage.folder / "warm-up"), kinds=["train", "command", "failing"], rest=rest),
            stage.client("visitors", each=WARM_VISITORS, **visits)]
        self.clients = [
            stage.client("short-jobs", at_a_time=SHORT_JOBS, pause=self.options.pause, folder=str(stage.folder),
                         request=short, rest=rest),
            # These jobs have more ranks than there are slots, so they wait until they are cancelled.
            stage.client("fill", count=self.options.fill_jobs, in_flight=FILLS_IN_FLIGHT,
                         request=stage.request(ranks=FILL_RANKS).SerializeToString().hex()),
            stage.client("visitors", each=VISITORS, **visits)]

    def end_warm_up(self):
        for client in self.warm_clients:
            client.close()

    @contextlib.contextmanager
    def at_rest(self, recorder):
        """Runs the block when no visit and no short job is under way, and lets no other begin meanwhile."""
        self._rest.touch()
        try:
            began = time.monotonic()
            # Within two report periods, the newest report may be older than the file.
            while time.monotonic() - began < 2 * REPORT_S or any(self.counts.get(name, 1) for name in UNDER_WAY):
                if time.monotonic() - began > REST_LIMIT_S:
                    raise sides.MeasurementFailed(f"the clients are not at rest after {REST_LIMIT_S} s: {self.counts}")
                recorder.sample("visits")
            yield
        finally:
            self._rest.unlink()

    def programs(self):
        """{name: (process, port of its metrics)}"""
        return {"coordinator": (self.stage.coordinator, self.stage.cluster.metrics_port),
                **{f"daemon {name}": worker for name, worker in self.workers.items()}}

    def look(self):
        """Updates and returns the counts; "jobs_at_fill" are the short jobs that had ended when the filling was done.
        Fails if the long job or a client does not do what it should."""
        for client in self.clients:
            for line in client.drain():
                self.counts.update(line)
        view = self._long_job()
        if view.state_name != "RUNNING" or view.job.generation != 1:
            raise sides.MeasurementFailed(f"the long job is {view.state_name}: {view.job.reason}")
        self.counts["steps"] = view.job.last_step
        if self.counts.get("filled", 0) >= self.options.fill_jobs:
            self.counts.setdefault("jobs_at_fill", self.counts.get("jobs", 0))
        return self.counts

    def _long_job(self):
        """Waits longer than Cluster.get, because an hour of samples should not end when the machine is busy once."""
        cluster = self.stage.cluster
        request = self.stage.schema.service.GetRequest(job_id=self.job)
        return harness.JobView(cluster.jobs.Get(request, timeout=operate_rows.LIMIT_S), self.stage.schema)

    def pace(self):
        pid = self._long_job().pid_of(0)
        if pid is None:
            raise sides.MeasurementFailed("the coordinator does not know the process of the long job")
        return Pace(pid, self.options.share)


class Recorder:
    """Samples each process, and reports the progress once a minute."""

    def __init__(self, load, options):
        self._load, self._options = load, options
        self.samples = collections.defaultdict(list)  # name → [Sample]
        self._newest = {}
        self.began = self._shown = time.monotonic()
        self._file = None
        if options.samples:
            self._file = open(options.samples, "w", buffering=1)
            self._file.write("process,time_s,phase,rss_kib,anonymous_kib,allocated_kib,threads,descriptors,steps,"
                             "jobs\n")

    def minutes(self):
        return (time.monotonic() - self.began) / 60

    def sample(self, phase):
        counts = self._load.look()
        for name, (program, port) in self._load.programs().items():
            sample = sample_of(program, port, time.monotonic() - self.began)
            self._newest[name] = sample
            if phase == "measure":
                self.samples[name].append(sample)
            if self._file:
                self._file.write(f"{name},{sample.time_s:.1f},{phase},{sample.rss},{sample.anonymous},"
                                 f"{sample.allocated:.1f},{sample.threads},{sample.descriptors},"
                                 f"{counts.get('steps', 0)},{counts.get('jobs', 0)}\n")
        if time.monotonic() - self._shown >= 60:
            self._shown = time.monotonic()
            sizes = ", ".join(f"{name} {sample.rss / 1024:.1f} MiB, {sample.allocated / 1024:.2f} of them allocated"
                              for name, sample in self._newest.items())
            log(f"{self.minutes():.0f} of {self._options.minutes:g} min, {phase}: {sizes}; "
                f"{', '.join(f'{name} {value:,}' for name, value in sorted(counts.items()))}")
        time.sleep(self._options.interval)

    def close(self):
        if self._file:
            self._file.close()


def is_warm(counts, options):
    """Whether all histories are full, and the one of finished jobs contains short jobs alone."""
    if "jobs_at_fill" not in counts or counts["steps"] < options.warm_steps:
        return False
    return counts.get("jobs", 0) - counts["jobs_at_fill"] >= options.warm_jobs


def measure(options):
    """Ctrl-C during the samples ends them early: what was measured is returned, and `options.stopped` is set."""
    config = f"finished_jobs: {FINISHED_JOBS}\n"
    with operate_rows.Stage(config) as stage:
        load = Load(stage, options)
        load.start()
        recorder = Recorder(load, options)
        with contextlib.closing(recorder):
            while not is_warm(load.counts, options):
                recorder.sample("warm-up")
            with load.pace():
                while recorder.minutes() < options.warm_minutes * (1 - SETTLE_SHARE):
                    recorder.sample("warm-up")
                load.end_warm_up()
                settled = recorder.minutes() + options.warm_minutes * SETTLE_SHARE
                while recorder.minutes() < settled:
                    recorder.sample("warm-up")
                at_begin = dict(load.counts)
                try:
                    end = time.monotonic() + 60 * (options.minutes - options.warm_minutes)
                    while time.monotonic() < end:
                        with load.at_rest(recorder):
                            for _ in range(REST_SAMPLES):
                                recorder.sample("measure")
                        rest = time.monotonic() + REST_EVERY_S
                        while time.monotonic() < min(rest, end):
                            recorder.sample("visits")
                except KeyboardInterrupt:
                    if not recorder.samples:
                        raise
                    options.stopped = True
        differences = {name: value - at_begin.get(name, 0) for name, value in load.counts.items()}
        counts = {name: difference for name, difference in differences.items()
                  if name not in UNDER_WAY and (difference or name == "other_ends")}
        return figures_of(recorder.samples, counts)


def trend_of(samples, name):
    """The trend of an attribute of the samples per hour, or None if there are too few."""
    points = trends.medians_of_parts([(sample.time_s / 3600, getattr(sample, name)) for sample in samples])
    return trends.trend_of(points) if len(points) >= 3 else None


def allocations_are_exact():
    """Whether the threads of the daemons, which inherit this environment, keep no freed blocks. glibc counts such
    blocks as allocated, and each thread keeps more of them the longer it runs."""
    return "glibc.malloc.tcache_count=0" in os.environ.get("GLIBC_TUNABLES", "")


def figure_of(name, samples, kind, measured):
    """`kind`: an attribute of the samples, in KiB."""
    trend, values = trend_of(samples, kind), [getattr(sample, kind) for sample in samples]
    others = {} if trend is None else {"low": trend.low, "high": trend.high}
    others.update(first_mib=values[0] / 1024, last_mib=values[-1] / 1024, max_mib=max(values) / 1024)
    if kind == "rss":
        others.update(threads=samples[-1].threads, descriptors_first=samples[0].descriptors,
                      descriptors_last=samples[-1].descriptors)
    what = f"{KINDS[kind]}, {name}, over {measured}"
    if kind == "allocated" and not allocations_are_exact():
        return Figure(f"{what}, including the freed blocks that threads keep", 0 if trend is None else trend.slope,
                      "KiB/h", others=others)
    small = trends.SMALL if kind == "allocated" else trends.RESOLUTION
    if trends.verdict_of(trend, small) == "undecided":
        return Figure(f"{what}: too few or too noisy samples for a verdict", 0 if trend is None else trend.slope,
                      "KiB/h", others=others)
    return Figure(what, trend.slope, "KiB/h", trends.noise_of(trend, small), others=others)


def figures_of(samples, counts):
    """Three figures for each process, and one for what was done meanwhile. The allocated memory shows a leak of any
    size, if its measurement is exact (allocations_are_exact). The resident memory also depends on where the allocator
    finds space for each block, and takes hours to become constant, so small growth of it does not count. Its anonymous
    part has a figure of its own, because the kernel takes pages of files away from a process when other programs need
    memory."""
    first = next(iter(samples.values()))
    measured = f"{(first[-1].time_s - first[0].time_s) / 60:.0f} min after the warm-up"
    steps = counts.pop("steps", 0)
    return [*(figure_of(name, values, kind, measured) for name, values in samples.items()
              for kind in KINDS),
            Figure(f"the long job meanwhile; {FINISHED_JOBS} finished jobs were kept", steps, "steps",
                   others=dict(sorted(counts.items())))]
