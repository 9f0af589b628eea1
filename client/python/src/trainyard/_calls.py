"""The unary calls of the coordinator's API, shared by the clients with and without asyncio. `_unary`, which each client
defines, makes a call or returns an awaitable that makes it."""

import os
import random
import re
import string
import time
import warnings

from trainyard import _dial, errors, schema

CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The pings of a long watch detect a coordinator whose machine has disappeared.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_receive_message_length", 64 << 20),
    # A new channel makes a new connection, even if calls still use that of an older channel.
    ("grpc.use_local_subchannel_pool", 1),
]
CALL_TIMEOUT_S = 30.0
RETRY_WAIT_MAX_S = 2.0
# Each call sends the version of this package, and the versions of the API that it supports, to the coordinator, which
# answers with its own.
VERSION = "0.1.0"
CLIENT = f"trainyard-python/{VERSION} api=1-1"
_SERVER = re.compile(r"([\w.+~-]+)/([\w.+~-]+) api=\d+-\d+")
UNANSWERED = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def new_job_id():
    """An id for Submit, so that a repeated call submits the job only once."""
    return "".join(random.SystemRandom().choices(string.ascii_lowercase + string.digits, k=12))


def method_of(name):
    """The path of a method, and the classes of its request and response."""
    method = schema.SERVICE.methods_by_name[name]
    return (f"/{schema.SERVICE.full_name}/{name}", schema.message_of(method.input_type),
            schema.message_of(method.output_type))


def unary(channel, name):
    """The callable of a unary method on a channel, and the class of its request."""
    path, request, response = method_of(name)
    return channel.unary_unary(path, request_serializer=request.SerializeToString,
                               response_deserializer=response.FromString), request


def stream(channel, name, fields, metadata, timeout=None):
    """Begins a call whose answer is a stream of messages, which ends with an error after `timeout` seconds."""
    path, request, response = method_of(name)
    begin = channel.unary_stream(path, request_serializer=request.SerializeToString,
                                 response_deserializer=response.FromString)
    return begin(request(**fields), timeout=timeout, metadata=metadata)


def served_s(initial_metadata, began):
    """For how long a coordinator has served a stream that began at this time. It sends its metadata at once, before
    the first message."""
    return time.monotonic() - began if "trainyard-server" in dict(initial_metadata or ()) else 0.0


def retry_wait_s(wait_s, error):
    """The time before the next try: `wait_s`, or longer if the coordinator has requested that."""
    return max(wait_s, min(error.retry_after_s or 0.0, RETRY_WAIT_MAX_S))


def unanswered(error, name, fields):
    """The error of a call that no coordinator answered. A coordinator may have received it, so the error of a Submit
    names the job."""
    if name == "Submit":
        error.job_id = fields["job_id"]
        job_id = errors.plain_line(error.job_id)
        error.args = (f"{error}; the job may have been submitted as {job_id}: get('{job_id}') returns it, and submit "
                      f"with job_id='{job_id}' repeats the call without a second job",)
    return error


def watch_fields(job_id, seen):
    return {"job_id": job_id, "after_sequence": seen.after_sequence, "after_step": seen.after_step,
            "after_eval_step": seen.after_eval_step, "allow_gap": seen.take_allow_gap()}


class Calls:
    def __init__(self, address=None, token_file=None, allow_plaintext=False, reconnect_s=60.0):
        self._target = _dial.Target(address, token_file, allow_plaintext)
        self._reconnect_s = reconnect_s
        self._pid = os.getpid()
        self._compared = False  # whether _check_server has compared the versions

    @property
    def address(self):
        return self._target.address

    def _metadata(self):
        if os.getpid() != self._pid:
            raise errors.FailedPreconditionError(
                "this client was made before this process was forked, and gRPC does not survive a fork: make a client "
                "in the new process")
        token = self._target.token()
        return [("trainyard-client", CLIENT), *([("authorization", f"Bearer {token}")] if token else [])]

    def _check_server(self, initial_metadata):
        """Warns once of a coordinator of another release. An incompatible coordinator would have refused the call."""
        server = _SERVER.fullmatch(str(dict(initial_metadata or ()).get("trainyard-server", "")))
        if self._compared or server is None:
            return
        self._compared = True
        if server[2].split(".")[:2] != VERSION.split(".")[:2]:
            warnings.warn(f"this package has version {VERSION} and {server[1]} version {server[2]}, which works; use "
                          "the same version to have everything that the newer one supports", stacklevel=4)

    def _is_new_token(self, error, metadata):
        """Whether a call was refused because the coordinator was restarted with a new token meanwhile."""
        return error.code == "UNAUTHENTICATED" and self._metadata() != metadata

    def submit(self, job, *, resume=False, allow_fresh_start=False, default_run_root=None, job_id=None):
        """Submits a job, which is a schema.JobSpec or a dictionary with the keys of a job file, and returns a
        SubmitResponse. `default_run_root`: the folder in which the run folder is made; by default ./trainyard-runs."""
        spec = schema.job_spec(job) if isinstance(job, dict) else job
        root = os.path.abspath("trainyard-runs" if default_run_root is None else default_run_root)
        if spec.HasField("command") and not spec.command.workdir:
            changed = type(spec)()
            changed.CopyFrom(spec)
            changed.command.workdir = os.getcwd()
            spec = changed
        return self._unary("Submit", {"spec": spec, "job_id": job_id or new_job_id(), "resume": resume,
                                      "allow_fresh_start": allow_fresh_start, "default_run_root": root}, retry=True)

    def get(self, job_id):
        return self._unary("Get", {"job_id": job_id}, retry=True)

    def list(self, page_size=0, page_token="", states=()):
        """One page of jobs, newest first. `states`: names such as "RUNNING"."""
        known = schema.STATES[1:]  # without UNSPECIFIED
        for state in states:
            if state not in known:
                raise errors.InvalidArgumentError(f"states: expected a list of {', '.join(known)}; found {state!r}")
        numbers = [schema.STATES.index(state) for state in states]
        return self._unary("List", {"page_size": page_size, "page_token": page_token, "states": numbers}, retry=True)

    def find_jobs(self, text, page_size=0, page_token=""):
        """One page of the jobs that `text` may mean: an id, the beginning of an id, or a name."""
        return self._unary("FindJobs", {"text": text, "page_size": page_size, "page_token": page_token}, retry=True)

    def get_server_info(self):
        return self._unary("GetServerInfo", {}, retry=True)

    def list_hosts(self, page_size=0, page_token=""):
        """One page of hosts, by name."""
        return self._unary("ListHosts", {"page_size": page_size, "page_token": page_token}, retry=True)

    def list_events(self, job_id="", after_sequence=0, limit=0, page_token="", page_size=0):
        """One page of the durable events of a job, or of the cluster."""
        return self._unary("ListEvents", {"job_id": job_id, "after_sequence": after_sequence, "limit": limit,
                                          "page_token": page_token, "page_size": page_size}, retry=True)

    # Except for get_queue, the calls below change something. `expected_version`: the resource_version that the job or
    # host must still have; if it has another one, nothing changes and AbortedError is raised. 0: any.

    def cancel(self, job_id, reason="", save=False, expected_version=0):
        return self._unary("Cancel", {"job_id": job_id, "reason": reason, "save": save,
                                      "expected_version": expected_version})

    def restart(self, job_id, reason="", now=False, expected_version=0, request_id=""):
        """`request_id`: a text that you choose for this request. A call with the same id, for example after a lost
        answer, does not restart the job again."""
        return self._unary("Restart", {"job_id": job_id, "reason": reason, "now": now,
                                       "expected_version": expected_version, "request_id": request_id})

    def pause(self, job_id, reason="", now=False, expected_version=0):
        return self._unary("Pause", {"job_id": job_id, "reason": reason, "now": now,
                                     "expected_version": expected_version})

    def resume(self, job_id, reason="", from_start=False, expected_version=0):
        return self._unary("Resume", {"job_id": job_id, "reason": reason, "from_start": from_start,
                                      "expected_version": expected_version})

    def save(self, job_id, reason="", expected_version=0, request_id=""):
        """`request_id`: as for `restart`."""
        return self._unary("Save", {"job_id": job_id, "reason": reason, "expected_version": expected_version,
                                    "request_id": request_id})

    def set_priority(self, job_id, priority, reason="", expected_version=0):
        """`priority`: 0 to 100; jobs with a greater number start first."""
        return self._unary("SetPriority", {"job_id": job_id, "priority": priority, "reason": reason,
                                           "expected_version": expected_version})

    def get_queue(self, page_size=0, page_token="", namespace=""):
        """One page of the waiting jobs, in the order in which they would start."""
        return self._unary("GetQueue", {"page_size": page_size, "page_token": page_token, "namespace": namespace},
                           retry=True)

    def set_host(self, name, action, reason="", now=False, expected_version=0):
        """`action`: "cordon", "uncordon", "drain", "lost" or "forget"."""
        actions = ("cordon", "uncordon", "drain", "lost", "forget")
        if action not in actions:
            raise errors.InvalidArgumentError(f"action: expected one of {', '.join(actions)}; found {action!r}")
        return self._unary("SetHost", {"name": name, "action": actions.index(action) + 1, "reason": reason, "now": now,
                                       "expected_version": expected_version})
