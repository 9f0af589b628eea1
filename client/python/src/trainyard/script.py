"""For training scripts: whether the job is being ended, so that the script can save and exit.

Trainyard ends the ranks of a command (pause, restart, drain, cancel, a failed peer, a daemon that stops) by SIGTERM,
and by SIGKILL after `command.grace_s` (after at most 10 s when a daemon stops). torchrun and schedulers of clusters
also send SIGTERM first. Uses neither gRPC nor a thread.
"""

import signal
import threading
import warnings

_received = False
_installed = False
_previous = None


def _note(number, frame):
    global _received
    _received = True
    if callable(_previous):
        _previous(number, frame)


def _install():
    global _installed, _previous
    if _installed:
        return
    if threading.current_thread() is not threading.main_thread():
        warnings.warn("the first call of trainyard.stop_requested must be in the main thread, which alone can handle "
                      "signals; until then SIGTERM ends this process at once", RuntimeWarning, stacklevel=3)
        return
    _previous = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _note)
    _installed = True


def install_again():
    """Replaces the handler that a library has installed after the first call of stop_requested."""
    if _installed and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _note)


def stop_requested():
    """Whether this process has received SIGTERM. From the first call on, SIGTERM no longer ends the process."""
    _install()
    return _received


def should_stop():
    """Whether the ranks should save and exit after this step.

    Signals reach the ranks during different steps. If torch.distributed is initialised with several ranks, they
    therefore agree by one all-reduce, and all get the same answer: every rank must call this function at the same point
    of its loop, as it must call every collective. With GPUs the call waits for the GPU; calling it every ten steps is
    enough.
    """
    return bool(largest_of_ranks(int(stop_requested())))


def largest_of_ranks(value):
    """The largest value of all ranks, by one all-reduce; without torch.distributed, the value of this rank."""
    import sys
    distributed = sys.modules.get("torch.distributed")  # a script that uses it has imported it
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return value
    if distributed.get_world_size() == 1:
        return value
    import torch
    device = "cuda" if "gloo" not in distributed.get_backend() else "cpu"
    largest = torch.tensor([value], device=device)
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return largest.item()
