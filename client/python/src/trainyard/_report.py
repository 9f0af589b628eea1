"""Reports the steps of a script to Trainyard: `trainyard.report(step, loss=0.5)`, and receives requests to save.

Outside of a job with `command`, in processes that the script forks, and in ranks that a launcher inside the script has
started, nothing is reported. A script never waits for Trainyard, except for at most two seconds in each call of `saved`
and at its end (ten, if it has called `saved`), and never fails because of Trainyard: what cannot be sent is dropped.
"""

import atexit
import contextlib
import json
import numbers
import os
import pathlib
import select
import subprocess
import sys
import time
import warnings

_VARIABLES = ("TRAINYARD_LINK", "TRAINYARD_TOKEN", "TRAINYARD_JOB_ID", "TRAINYARD_GENERATION", "TRAINYARD_RANK")
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR")
_END_WAIT_S = 2.0
# The first report may be the checkpoint of a script that is being ended; the helper must load gRPC before it sends it.
_END_WAIT_SAVED_S = 10.0
# A larger number is probably a Unix time. After it, no real step could be reported, because steps must increase.
_STEP_MAX = 10**9
_PHASES = ("load", "evaluate", "save")


def _warn(text):
    warnings.warn(text, RuntimeWarning, stacklevel=4)


def _number(name, value):
    """Converts a number, or a tensor or array with one element, to a float."""
    if isinstance(value, numbers.Real):
        return float(value)
    if type(value).__name__ == "DTensor":
        raise TypeError(f"{name}: a DTensor would need a collective; pass a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected a number, found {type(value).__name__}") from None


def _count(value):
    return min(max(0, int(value)), 2**63)


class _Channel:
    def __init__(self):
        self.pid = os.getpid()
        self.rank = 0
        self.last_step = 0
        self.last_eval = 0
        self.last_time = None
        self.last_saved = 0
        self.last_answer = 0  # the newest request to save that a reported checkpoint has answered
        self.phases = []      # names, the innermost last
        self.phase_began = 0.0  # when the outermost phase began
        self.accepts_saves = False
        self.helper = None
        self.save_request = 0  # the newest one
        self.requests = b""    # an incomplete line of the helper
        if not all(os.environ.get(name) for name in _VARIABLES):
            return
        self.rank = int(os.environ["TRAINYARD_RANK"])
        if os.environ.get("RANK") != os.environ["TRAINYARD_RANK"]:
            return _warn("RANK is not the one that Trainyard has set, so another launcher runs inside of this job; "
                         "this process reports nothing to Trainyard")
        try:
            self.helper = self._start()
        except (OSError, ValueError) as error:
            _warn(f"no progress is reported to Trainyard: the process that sends it cannot be started: {error}")
            return
        os.set_blocking(self.helper.stdin.fileno(), False)
        os.set_blocking(self.helper.stdout.fileno(), False)
        atexit.register(self._end)

    def _start(self):
        if not sys.executable:
            raise ValueError("sys.executable is empty")
        if getattr(sys, "frozen", False):
            raise ValueError(f"{sys.executable} is not Python, but a frozen program, which would run a second time")
        environment = {name: os.environ[name] for name in _VARIABLES + _KEPT_VARIABLES if name in os.environ}
        folders = [path or os.getcwd() for path in sys.path if isinstance(path, str)]  # Python ignores other entries
        environment["TRAINYARD_HELPER_PATH"] = json.dumps(folders)
        environment["TRAINYARD_HELPER_PARENT"] = str(os.getpid())
        helper = pathlib.Path(__file__).with_name("_link_helper.py")
        return subprocess.Popen([sys.executable, helper], env=environment, stdin=subprocess.PIPE, bufsize=0,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def phase(self):
        """The phase to report: empty before the first step, when nothing is known of the script's progress."""
        return self.phases[-1] if self.phases else "train" if self.last_step else ""

    def is_open(self):
        return self.helper is not None and os.getpid() == self.pid

    def send(self, report, wait_s=0.0):
        """Returns whether the helper has the report. If it is slow and `wait_s` has passed, the report is dropped."""
        if not self.is_open():
            return False
        line = json.dumps(report, ensure_ascii=False).encode() + b"\n"
        assert len(line) <= select.PIPE_BUF, "a longer line could be written in part"
        try:
            if wait_s > 0:
                poller = select.poll()  # select() accepts no descriptor above 1023
                poller.register(self.helper.stdin, select.POLLOUT)
                poller.poll(wait_s * 1000)
            os.write(self.helper.stdin.fileno(), line)
            return True
        except BlockingIOError:
            return False
        except OSError:
            self.helper = None
            _warn("the process that sends progress to Trainyard has ended; no more is reported")
            return False

    def newest_save_request(self):
        """The number of the newest request to save that the helper has received. Does not wait."""
        try:
            while self.is_open():
                data = os.read(self.helper.stdout.fileno(), 4096)
                if not data:
                    break
                *lines, self.requests = (self.requests + data).split(b"\n")
                # The module sitecustomize may print to standard output when Python starts the helper.
                self.save_request = max([self.save_request, *(int(line) for line in lines if line.isdigit())])
        except BlockingIOError:
            pass
        return self.save_request

    def _end(self):
        if not self.is_open():
            return
        with contextlib.suppress(OSError):  # the pipe is full, or the helper has ended
            # A forked process that lives on, such as the worker of a DataLoader, keeps the pipe open.
            os.write(self.helper.stdin.fileno(), b"end\n")
        self.helper.stdin.close()
        try:
            self.helper.wait(_END_WAIT_SAVED_S if self.last_saved else _END_WAIT_S)
        except subprocess.TimeoutExpired:
            self.helper.kill()


_channel = None


def _open():
    global _channel
    if _channel is None:
        _channel = _Channel()
    return _channel


def _check_step(step, last, name):
    if isinstance(step, bool) or not isinstance(step, numbers.Integral):
        raise TypeError(f"step: expected a whole number, found {type(step).__name__}")
    if not last < step <= _STEP_MAX:
        _warn(f"{name}: steps must increase and be at most {_STEP_MAX}; step {step} after step {last} is not reported")
        return False
    return True


def report(step, loss=None, tokens=None, lr=None, grad_norm=None):
    """Reports that the optimizer step `step`, counted from 1 over the whole training, was made. Every rank may call it;
    the values are those of rank 0. A tensor on a GPU makes the call wait for the GPU."""
    channel = _open()
    if not _check_step(step, channel.last_step, "report"):
        return
    steps, channel.last_step = step - channel.last_step, int(step)
    now, before, channel.last_time = time.monotonic(), channel.last_time, time.monotonic()
    # The time in a phase does not count as time of the step.
    until = max(before or 0.0, channel.phase_began) if channel.phases else now
    since = until - before if before is not None else 0.0
    message = {"kind": "progress", "step": int(step), "since_s": since, "phase": channel.phase()}
    if channel.helper is None or channel.rank != 0:
        channel.send(message)
        return
    message.update(kind="step", step_s=since / steps)
    for name, value in (("loss", loss), ("lr", lr), ("grad_norm", grad_norm)):
        if value is not None:
            message[name] = _number(name, value)
    if tokens is not None:
        message["tokens"] = _count(tokens)
    channel.send(message)


def report_eval(step, loss, tokens=0, seconds=0.0):
    """Reports an evaluation after `step`. The values are those of rank 0."""
    channel = _open()
    if channel.rank != 0 or not _check_step(step, channel.last_eval, "report_eval"):
        return
    channel.last_eval = int(step)
    channel.send({"kind": "eval", "step": int(step), "loss": _number("loss", loss), "tokens": _count(tokens),
                  "seconds": _number("seconds", seconds)})


@contextlib.contextmanager
def phase(name):
    """Reports that this rank does something other than steps: "load", "evaluate" or "save".

        with trainyard.phase("evaluate"):
            ...

    The time in a phase counts neither as part of a step nor for the limit after which a job without steps is reported
    as hung. Phases have limits of their own (docs/python.md)."""
    if name not in _PHASES:
        raise ValueError(f"phase: expected {', '.join(map(repr, _PHASES))}, found {name!r}")
    channel = _open()
    began = time.monotonic()
    if not channel.phases:
        channel.phase_began = began
    channel.phases.append(name)
    channel.send({"kind": "phase", "phase": name})
    try:
        yield
    finally:
        channel.phases.pop()
        now = time.monotonic()
        channel.send({"kind": "phase", "phase": channel.phase(), "ended": name, "seconds": now - began})
        if not channel.phases and channel.last_time is not None:
            channel.last_time += now - max(began, channel.last_time)
