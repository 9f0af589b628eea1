"""For training scripts: whether the job is being ended, so that the script can save and exit.

Trainyard ends the ranks of a command (pause, restart, drain, cancel, a failed peer, a daemon that stops) by SIGTERM,
and by SIGKILL after `command.grace_s` (after at most 10 s when a daemon stops). torchrun and schedulers of clusters
also send SIGTERM first. Uses neither gRPC nor a thread.

The signal goes to the process group of the rank. It would end the workers of a DataLoader, and their end raises an
error in the process that uses them, before that process can save. So processes that multiprocessing forks after the
first call of stop_requested leave the group; those that it spawns leave it when they import this package. SIGTERM that
is sent to them alone (Process.terminate) ends them as usual.
"""

import os
import signal
import sys
import threading
import warnings

_NOTED_BY = "TRAINYARD_SIGTERM_NOTED_BY"  # the pid of the process that has set it; its children inherit the variable

_received = False
_pid = 0  # the process that has installed the handler; 0: none
_previous = None  # the handler before it
_left_group = None  # the process group of the rank, in a process that has left it


def _note(number, frame):
    global _received
    if os.getpid() != _pid:  # a forked process has inherited this handler
        signal.signal(number, _previous if _previous is not None else signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    _received = True
    if callable(_previous):
        _previous(number, frame)


def _leave_group():
    """Runs in each process that multiprocessing has forked or spawned. The rank's shim ends the process even outside of
    the group. Outside of a job, the process stays in the group: a terminal or another launcher may end all processes by
    it."""
    global _left_group
    group = os.getpgrp()
    if not os.environ.get("TRAINYARD_JOB_ID") or group == os.getpid():
        return
    try:
        os.setpgid(0, 0)
    except OSError:
        return
    if _left_group is None:  # otherwise the parent has left the group of the rank, and `group` is the parent's
        _left_group = group


def _is_spawned_by_noting_process():
    """Whether multiprocessing has spawned this process from one that notes SIGTERM. A fork server counts as such if its
    version of Python imports the script in it, and then its workers are outside of the group, too. Otherwise they stay
    in the group."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or os.environ.get(_NOTED_BY) != str(os.getppid()):
        return False
    # While such a process imports the script, it has no parent_process yet, but this mark.
    return process.parent_process() is not None or getattr(process.current_process(), "_inheriting", False)


def _join_group():
    """Called in a process that calls stop_requested: it must receive the signal, too, so it joins the group again if it
    has left it."""
    global _left_group
    if _left_group is None:
        return
    try:
        os.setpgid(0, _left_group)
    except OSError:
        pass
    _left_group = None


def _install():
    global _pid, _previous
    if _pid == os.getpid():
        return
    if threading.current_thread() is not threading.main_thread():
        warnings.warn("the first call of trainyard.stop_requested must be in the main thread, which alone can handle "
                      "signals; until then SIGTERM ends this process at once", RuntimeWarning, stacklevel=3)
        return
    if signal.getsignal(signal.SIGTERM) is not _note:
        _previous = signal.getsignal(signal.SIGTERM)
    is_first = _pid == 0  # a forked process has inherited what is registered
    _pid = os.getpid()
    os.environ[_NOTED_BY] = str(_pid)
    signal.signal(signal.SIGTERM, _note)
    _join_group()
    if is_first:
        import multiprocessing.util
        multiprocessing.util.register_after_fork(_leave_group, lambda leave_group: leave_group())


def install_again():
    """Replaces the handler that a library has installed after the first call of stop_requested."""
    if _pid == os.getpid() and threading.current_thread() is threading.main_thread():
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
    distributed = sys.modules.get("torch.distributed")  # a script that uses it has imported it
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return value
    if distributed.get_world_size() == 1:
        return value
    import torch
    # The backend is "undefined" if the script has named none; torch has then chosen gloo, or nccl if there is a GPU.
    device = "cpu"
    if "gloo" not in distributed.get_backend() and torch.cuda.is_available():
        # nccl refuses tensors of another GPU than that of init_process_group(device_id=...), which need not be the
        # current one.
        device = getattr(distributed.group.WORLD, "bound_device_id", None) or "cuda"
    largest = torch.tensor([value], device=device)
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX)
    return largest.item()


if _is_spawned_by_noting_process():
    _leave_group()
