"""The process that sends the reports of a script to the daemon of its host, so that the script has neither gRPC nor a
thread, both of which could break in processes that it forks. Started by _report.py, with the reports as lines of JSON
on standard input, and the numbers of requests to save as lines on standard output. Ends when its input or its parent
ends, or when the daemon no longer knows the rank or keeps refusing it.
"""

import collections
import json
import os
import queue
import signal
import sys
import threading
import time

REPORTS_KEPT = 4096  # as many as a daemon stores
SEND_INTERVAL_S = 0.25
PARENT_CHECK_S = 0.5
HEARTBEAT_S = 1.0  # distinguishes a rank without progress from one whose reports are late
BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0
REFUSED_MAX = 30
REPORTS_PER_MESSAGE = 256
CHECKPOINTS_KEPT = 20  # as many as the coordinator records
END = b"end\n"  # the last line


class Reports:
    """The newest reports of the script. Used by one thread at a time."""

    def __init__(self):
        self.steps = collections.deque(maxlen=REPORTS_KEPT)
        self.evals = collections.deque(maxlen=REPORTS_KEPT)
        self.last_step = 0
        self.count = 0  # of all reports
        self.phase = ""  # before the first step or phase: nothing is known of the script's progress
        self.phase_since = time.monotonic()
        self.phase_times = {}  # the longest duration of each phase since the last message
        self.saves_on_request = False
        self.checkpoints = collections.deque(maxlen=CHECKPOINTS_KEPT)  # with their numbers
        self.saves = 0

    def add(self, line):
        report = json.loads(line)
        kind = report.pop("kind")
        self.count += 1
        if kind in ("step", "progress"):
            self.last_step = report["step"]
            self.enter(report.pop("phase"), report.pop("since_s"), "train")
            if kind == "step":
                self.steps.append(report)
        elif kind == "eval":
            self.evals.append(report)
        elif kind == "phase":
            self.enter(report["phase"], report.get("seconds", 0), report.get("ended"))
        elif kind == "accepts_saves":
            self.saves_on_request = True
        elif kind == "saved":
            self.saves += 1
            self.checkpoints.append((self.saves, report))

    def enter(self, phase, seconds, ended):
        self.phase, self.phase_since = phase, time.monotonic()
        if seconds > 0:
            self.phase_times[ended] = max(seconds, self.phase_times.get(ended, 0))


class Helper:
    def __init__(self, schema, environment, parent):
        self.schema = schema
        self.environment = environment
        self.parent = parent
        self.lines = queue.Queue()
        self.ended = False
        self.reports = Reports()

    def read(self, stream):
        for line in stream:
            self.lines.put(line)
        self.lines.put(None)

    def take_lines(self, wait_s):
        """Waits for a line, and takes all lines that have arrived."""
        try:
            line = self.lines.get(timeout=wait_s)
            while True:
                if line is None or line == END:
                    self.ended = True
                else:
                    self.reports.add(line)
                line = self.lines.get_nowait()
        except queue.Empty:
            pass
        self.ended = self.ended or os.getppid() != self.parent

    def key(self):
        return self.schema.TrainerKey(job_id=self.environment["TRAINYARD_JOB_ID"],
                                      generation=int(self.environment["TRAINYARD_GENERATION"]),
                                      rank=int(self.environment["TRAINYARD_RANK"]))

    def report(self, steps=(), evals=(), checkpoint=None):
        """`checkpoint`: the one to report; None: the newest, if there is one."""
        schema, reports = self.schema, self.reports
        times, reports.phase_times = reports.phase_times, {}
        report = schema.RankReport(
            key=self.key(), phase=reports.phase, last_step=reports.last_step,
            phase_s=time.monotonic() - reports.phase_since if reports.phase else 0,
            phase_times=[schema.PhaseTime(phase=phase, longest_s=seconds) for phase, seconds in times.items()],
            saves_on_request=reports.saves_on_request,
            steps=[schema.StepReport(**one) for one in steps], evals=[schema.EvalReport(**one) for one in evals])
        if checkpoint is None and reports.checkpoints:
            checkpoint = reports.checkpoints[-1][1]
        if checkpoint is not None:
            report.script_checkpoint.CopyFrom(schema.ScriptCheckpoint(**checkpoint))
        return schema.TrainerMessage(report=report)

    def messages(self):
        """The messages of one stream. Everything that is kept is sent again on a new stream, and the daemon drops what
        it knows. The generator of a broken stream may still take lines for a moment, so each generator has its own
        position."""
        schema, reports = self.schema, self.reports
        yield schema.TrainerMessage(register=schema.RegisterTrainer(
            key=self.key(), token=self.environment["TRAINYARD_TOKEN"], pid=self.parent, version="python",
            reconnect=True))
        sent_step, sent_eval, sent_count, sent_save = 0, 0, 0, 0
        sent_at = time.monotonic()
        while True:
            self.take_lines(0 if self.ended or reports.count > sent_count else PARENT_CHECK_S)
            if reports.count > sent_count:
                sent_count = reports.count
                steps = [one for one in list(reports.steps) if one["step"] > sent_step]
                evals = [one for one in list(reports.evals) if one["step"] > sent_eval]
                # A checkpoint may be sent before its steps, because the daemon passes the steps on first.
                for _, checkpoint in [one for one in list(reports.checkpoints)[:-1] if one[0] > sent_save]:
                    yield self.report(checkpoint=checkpoint)
                sent_save = reports.saves
                for at in range(0, max(len(steps), len(evals), 1), REPORTS_PER_MESSAGE):
                    end = at + REPORTS_PER_MESSAGE
                    yield self.report(steps[at:end], evals[at:end])
                sent_at = time.monotonic()
                sent_step = steps[-1]["step"] if steps else sent_step
                sent_eval = evals[-1]["step"] if evals else sent_eval
                if not self.ended:
                    time.sleep(SEND_INTERVAL_S)
            elif self.ended:
                return
            elif reports.count > 0 and time.monotonic() - sent_at >= HEARTBEAT_S:
                yield self.report()
                sent_at = time.monotonic()

    def pass_on(self, message):
        """Writes the number of a request to save for the script, which may read it later or never."""
        if message.HasField("save"):
            try:
                os.write(sys.stdout.fileno(), b"%d\n" % message.save.request)
            except OSError:
                pass

    def run(self):
        import grpc

        from trainyard import _dial
        target = _dial.grpc_target("unix:" + self.environment["TRAINYARD_LINK"])
        wait_s = BACKOFF_MIN_S
        # Consecutive refusals. Their cause: another process has the link of this rank, or a report is not accepted.
        refused = 0
        final = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ABORTED)
        # The daemon may not have noticed yet that the earlier connection of this rank has ended.
        refusals = (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED)
        while True:
            channel = grpc.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)])
            call = channel.stream_stream("/trainyard.v1.TrainerLink/Connect",
                                         request_serializer=self.schema.TrainerMessage.SerializeToString,
                                         response_deserializer=self.schema.LinkMessage.FromString)(self.messages())
            began = time.monotonic()
            try:
                for message in call:
                    self.pass_on(message)
            except grpc.RpcError:
                pass
            channel.close()
            refused = refused + 1 if call.code() in refusals else 0
            if call.code() in final or refused == REFUSED_MAX or self.ended:
                return
            wait_s = BACKOFF_MIN_S if time.monotonic() - began > BACKOFF_MAX_S else min(2 * wait_s, BACKOFF_MAX_S)
            time.sleep(wait_s)


def main():
    # A script that is asked to end may report until it has ended.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(sys.stdout.fileno(), False)
    # sys.path began with the folder of this file, whose modules would hide others of the same names.
    sys.path[:] = json.loads(os.environ["TRAINYARD_HELPER_PATH"])
    from trainyard import schema
    helper = Helper(schema, os.environ, int(os.environ["TRAINYARD_HELPER_PARENT"]))
    threading.Thread(target=helper.read, args=(sys.stdin.buffer,), daemon=True).start()
    helper.run()
    os._exit(0)  # the thread that reads may still wait


if __name__ == "__main__":
    main()
