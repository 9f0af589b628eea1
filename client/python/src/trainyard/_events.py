"""Decides which events of a stream are new, as client/job_stream.h does, and when to try again."""

import time

SEEN_MAX = 20_000
BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0


class EventFilter:
    """A restarted coordinator may repeat steps under new sequence numbers, and one that lost its newest events reuses
    sequence numbers. Steps, evaluations and checkpoints are therefore also identified by their step, and other events
    by their content. Checkpoints that answer a request to save are identified by their content, too, because a script
    may answer several requests with one checkpoint."""

    def __init__(self, after_sequence=0, after_step=0, after_eval_step=0):
        self.after_sequence = after_sequence
        self.after_step = after_step
        self.after_eval_step = after_eval_step
        self._allow_gap = False
        self._has_events = False
        self._checkpoint = (0, 0)
        self._seen = set()

    def is_new(self, event):
        kind = event.WhichOneof("kind")
        if event.sequence == 0 and kind == "notice":
            return True  # it is not stored: it says that the coordinator cannot write to its store, or can again
        if event.sequence <= self.after_sequence:
            return False
        self.after_sequence = event.sequence
        self._has_events = True
        if kind == "step":
            newer, self.after_step = event.step.step > self.after_step, max(self.after_step, event.step.step)
            return newer
        if kind == "eval":
            newer, self.after_eval_step = event.eval.step > self.after_eval_step, max(self.after_eval_step,
                                                                                      event.eval.step)
            return newer
        if kind == "checkpoint" and not event.checkpoint.requested:
            checkpoint = (event.generation, event.checkpoint.step)
            newer, self._checkpoint = checkpoint > self._checkpoint, max(self._checkpoint, checkpoint)
            return newer
        content = type(event)()
        content.CopyFrom(event)
        content.sequence = 0
        text = content.SerializeToString(deterministic=True)
        if len(self._seen) >= SEEN_MAX:
            self._seen.clear()
        if text in self._seen:
            return False
        self._seen.add(text)
        return True

    def start_over(self, error):
        """The coordinator does not have all events after our sequence number. If some were deleted, request the rest;
        if it does not know the number, request all its events."""
        if not self._has_events:
            raise error  # the caller has chosen the number
        if error.reason == "VERSION_EXPIRED":
            self._allow_gap = True
        elif self.after_sequence == 0:
            raise error
        else:
            self.after_sequence = 0

    def take_allow_gap(self):
        allow_gap, self._allow_gap = self._allow_gap, False
        return allow_gap


class Retry:
    """Waits of 50 ms, doubling up to 1 s, until `give_up_s` have passed without an answer."""

    def __init__(self, give_up_s, clock=time.monotonic):
        self._give_up_s = give_up_s
        self._clock = clock
        self._wait_s = BACKOFF_MIN_S
        self._since = None

    def answered(self):
        self._wait_s = BACKOFF_MIN_S
        self._since = None

    def next_wait(self):
        """How long to wait before a call that must be repeated although the last one was answered."""
        wait, self._wait_s = self._wait_s, min(2 * self._wait_s, BACKOFF_MAX_S)
        return wait

    def failed(self, served_s=0.0):
        """How long to wait after a call without an answer; None once no call was answered for `give_up_s`. A stream
        that the coordinator served for a while (`served_s`) was answered, because a job may have no events for days."""
        if served_s > BACKOFF_MAX_S:
            self.answered()
        now = self._clock()
        if self._since is None:
            self._since = now
        left = self._give_up_s - (now - self._since)
        return None if left <= 0 else min(self.next_wait(), left)
