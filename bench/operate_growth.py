"""What the coordinator has allocated after each batch of one kind of work, with nothing else running.

    .deps/python/bin/python bench/operate_growth.py KIND:BATCHES:EACH ...

KIND is train (jobs of 200 steps), command (jobs that run /bin/true), watch (calls of Watch that are cancelled after six
events) or http (requests whose connection is closed after the first bytes). Three clients make EACH of them in each
batch, one after the other. `./dev bench operate rss` measures the slope of everything together; this shows which kind
makes memory grow. Use it with GLIBC_TUNABLES=glibc.malloc.tcache_count=0, for the reason that bench/README.md states.
The programs are those of build/bin, or of TRAINYARD_BIN.
"""

import http.client
import itertools
import sys
import threading
import time

import operate_memory
import operate_rows

CLIENTS = 3
REST_S = 3  # after each batch, so that calls under way and freed memory do not count
EVENTS_READ = 6


class Work:
    """The kinds of work, each as a method that does it once."""

    def __init__(self, stage):
        self._stage, self._jobs = stage, stage.cluster.jobs
        self._numbers = itertools.count()

    def renew(self):
        """Chooses a new job to watch, because the coordinator keeps only the newest ones."""
        self._watched = self.command()

    def train(self):
        request = self._stage.training("short", 200)
        request.spec.checkpoint.dir = str(self._stage.folder / "runs" / str(next(self._numbers)))
        self._run(request)

    def command(self):
        return self._run(self._stage.command("short", "/bin/true"))

    def watch(self):
        call = self._jobs.Watch(self._stage.schema.service.WatchRequest(job_id=self._watched),
                                timeout=operate_rows.LIMIT_S)
        for _ in itertools.islice(call, EVENTS_READ):
            pass
        call.cancel()

    def http(self):
        paths = ("/metrics", "/api/v1/jobs", "/api/v1/watch/jobs", f"/api/v1/jobs/{self._watched}/watch")
        connection = http.client.HTTPConnection("127.0.0.1", self._stage.cluster.metrics_port, timeout=10)
        connection.request("GET", paths[next(self._numbers) % len(paths)])
        connection.getresponse().read(200)
        connection.close()

    def _run(self, request):
        """Submits a job, waits for its end, and returns its id."""
        job = self._stage.submit_one(request)
        for _ in self._jobs.Watch(self._stage.schema.service.WatchRequest(job_id=job), timeout=operate_rows.LIMIT_S):
            pass
        return job


def main(plan):
    with operate_rows.Stage(f"finished_jobs: {operate_memory.FINISHED_JOBS}\n") as stage:
        stage.cluster.start_worker("h1", CLIENTS, "--health", "")
        work, total = Work(stage), 0
        for kind, batches, each in plan:
            for _ in range(batches):
                work.renew()
                threads = [threading.Thread(target=lambda: [getattr(work, kind)() for _ in range(each)])
                           for _ in range(CLIENTS)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                total += CLIENTS * each
                time.sleep(REST_S)
                print(f"{kind}, {total} in all: {operate_memory.allocated_kib(stage.cluster.metrics_port):.1f} KiB",
                      flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1 or any(one.count(":") != 2 for one in sys.argv[1:]):
        sys.exit(__doc__)
    main([(kind, int(batches), int(each)) for kind, batches, each in (one.split(":") for one in sys.argv[1:])])
