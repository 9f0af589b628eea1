"""The client of the coordinator: `Client("127.0.0.1:7070").get_server_info()`.

Calls that only read, and Submit, are repeated for `reconnect_s` seconds while no coordinator answers. Every other error
is raised (trainyard.errors). Thread-safe, but not usable in a process that was forked after the client was made.
"""

import itertools
import threading
import time
import weakref

import grpc

from trainyard import _calls, _dial, _events, errors, schema
from trainyard.job import Job, JobTable


class Client(_calls.Calls):
    def __init__(self, address=None, token_file=None, allow_plaintext=False, reconnect_s=60.0):
        """`address`: host:port or unix:PATH; by default the variable TRAINYARD_COORDINATOR. `token_file`: by default
        the file that a coordinator of this user has written."""
        super().__init__(address, token_file, allow_plaintext, reconnect_s)
        self._lock = threading.Lock()
        self._channel = None
        self._channels = weakref.WeakSet()  # that calls may use: this one and those that were forgotten

    def close(self):
        with self._lock:
            channels, self._channel = [*self._channels], None
        for channel in channels:
            channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _open(self):
        with self._lock:
            if self._channel is None:
                self._channel = grpc.insecure_channel(_dial.grpc_target(self.address), options=_calls.CHANNEL_OPTIONS)
                self._channels.add(self._channel)
            return self._channel

    def _forget(self, channel):
        """Lets the next call make another channel: this one would reconnect to any process that listens at the address
        by then. It is not closed now, because that would cancel the calls of other threads; it closes when the last of
        these calls ends."""
        with self._lock:
            if self._channel is channel:
                self._channel = None

    def _convert(self, error, metadata, channel):
        """The error to raise; UnavailableError or DeadlineExceededError if the call can be repeated."""
        converted = errors.from_rpc(error, self.address)
        if converted.code in _calls.UNANSWERED:
            self._forget(channel)
        elif self._is_new_token(converted, metadata):
            converted = errors.UnavailableError(f"the coordinator at {self.address} was restarted with a new token")
        return converted

    def _call_once(self, name, fields):
        metadata, channel = self._metadata(), self._open()
        call, request = _calls.unary(channel, name)
        try:
            response, done = call.with_call(request(**fields), timeout=_calls.CALL_TIMEOUT_S, metadata=metadata)
            self._check_server(done.initial_metadata())
            return response
        except grpc.RpcError as error:
            raise self._convert(error, metadata, channel) from None

    def _unary(self, name, fields, retry=False):
        retries = _events.Retry(self._reconnect_s if retry else 0.0)
        while True:
            try:
                return self._call_once(name, fields)
            except (errors.UnavailableError, errors.DeadlineExceededError) as error:
                wait_s = retries.failed()
                if wait_s is None:
                    raise _calls.unanswered(error, name, fields) from None
                time.sleep(_calls.retry_wait_s(wait_s, error))

    def _pages(self, call, attribute, **options):
        token = ""
        while True:
            page = call(page_token=token, **options)
            yield from getattr(page, attribute)
            token = page.next_page_token
            if not token:
                return

    def iter_jobs(self, states=()):
        """All jobs, newest first, by as many calls as needed."""
        return self._pages(self.list, "jobs", page_size=1000, states=states)

    def iter_hosts(self):
        """All hosts, by name."""
        return self._pages(self.list_hosts, "hosts")

    def iter_events(self, job_id="", after_sequence=0, limit=0):
        """The newest `limit` (0: 1000) durable events of a job, or of the cluster, oldest first."""
        return self._pages(self.list_events, "events", job_id=job_id, after_sequence=after_sequence, limit=limit)

    def _stream(self, name, fields, timeout=None):
        metadata, channel, began = self._metadata(), self._open(), time.monotonic()
        call = _calls.stream(channel, name, fields, metadata, timeout)
        try:
            yield from call
        except grpc.RpcError as error:
            converted = self._convert(error, metadata, channel)
            converted.served_s = _calls.served_s(call.initial_metadata(), began)
            raise converted from None
        finally:
            call.cancel()

    def watch(self, job_id, after_sequence=0, after_step=0, after_eval_step=0, pause_s=None):
        """Yields the events of a job, each once and in order, until the job has ended; connects again after a lost
        connection. To continue from the result of `get`, pass its resource_version, last_step and last_eval_step.
        With `pause_s`, also ends when nothing has arrived for so long, for example because the job is paused. Raises
        UnavailableError if no coordinator has answered for `reconnect_s` seconds, and OutOfRangeError if
        `after_sequence` has expired or is not known."""
        seen = _events.EventFilter(after_sequence, after_step, after_eval_step)
        retries = _events.Retry(self._reconnect_s)
        while True:
            wait_s, received = None, False
            try:
                for event in self._stream("Watch", _calls.watch_fields(job_id, seen), timeout=pause_s):
                    retries.answered()
                    if not seen.is_new(event):
                        continue
                    received = True
                    yield event
                    if schema.state_name(event.state.state) in schema.FINAL_STATES:
                        return
                # No final state was new: the job may have reached it before the caller's position.
                if schema.state_name(self.get(job_id).state) in schema.FINAL_STATES:
                    return
                wait_s = retries.next_wait()
            except errors.OutOfRangeError as error:
                seen.start_over(error)
                wait_s = retries.next_wait()
            except (errors.UnavailableError, errors.DeadlineExceededError) as error:
                if pause_s is not None and isinstance(error, errors.DeadlineExceededError):
                    if received:
                        continue
                    self.get(job_id)  # raises an error if no coordinator answers
                    return
                wait_s = retries.failed(error.served_s)
                if wait_s is None:
                    raise
                wait_s = _calls.retry_wait_s(wait_s, error)
            time.sleep(wait_s)

    def logs(self, job_id, follow=False, ranks=(), tail_lines=0):
        """Yields the output lines of a job's ranks. Raises UnavailableError if the connection is lost."""
        yield from self._stream("Logs", {"job_id": job_id, "follow": follow, "ranks": list(ranks),
                                         "tail_lines": tail_lines})

    def job(self, text):
        """The job that `text` names: an id, the unique beginning of an id, or a unique name."""
        found = self.find_jobs(text)
        if len(found.jobs) == 1:
            return Job(self, found.jobs[0].job_id)
        if not found.jobs:
            raise errors.NotFoundError(f"no job is named '{errors.plain_line(text)}'")
        named = ", ".join(f"{job.job_id} ({errors.plain_line(job.name)}, {schema.state_name(job.state)})"
                          for job in found.jobs)
        raise errors.InvalidArgumentError(f"'{errors.plain_line(text)}' names {found.total} jobs: {named}; give an id")

    def jobs(self, states=(), limit=100):
        """A table of the newest jobs."""
        pages = self._pages(self.list, "jobs", page_size=max(1, min(limit, 1000)), states=states)
        return JobTable(list(itertools.islice(pages, limit)))

    def submit_job(self, job, **options):
        """As submit, but returns a Job."""
        return Job(self, self.submit(job, **options).job_id)
