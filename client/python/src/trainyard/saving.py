"""For training scripts: saves that an operator requests, and the checkpoints that the script has made.

    resume_from = trainyard.last_checkpoint()
    for step in range(first_step, steps):
        train_one_step()
        if trainyard.should_save():             # on every rank, at the same point of the loop
            save_checkpoint(trainyard.checkpoint_dir() / f"step-{step}")
            trainyard.saved(step, trainyard.checkpoint_dir() / f"step-{step}")

Without Trainyard nothing is requested or reported, and the script runs as before.
"""

import os
import pathlib

from trainyard import _report, script

_SEND_WAIT_S = 2.0
_PATH_BYTES = 1800  # a report is one atomic write to a pipe
_answered = 0    # the newest request to save for which should_save has returned True
_asked_step = 0  # the newest step that had been reported when should_save returned True for `_answered`


def checkpoint_dir(default="checkpoints"):
    """Creates and returns the folder for the checkpoints of this job (`command.checkpoint_dir`). It is the same after a
    restart and on all ranks. Without Trainyard: `default`."""
    if os.environ.get("TRAINYARD_LINK") and not os.environ.get("TRAINYARD_CHECKPOINT_DIR"):
        _report._warn(f"the job has no command.checkpoint_dir; its checkpoints are in {default!r}, which "
                      "other jobs may use, too")
    path = pathlib.Path(os.environ.get("TRAINYARD_CHECKPOINT_DIR") or default).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def last_checkpoint():
    """The path of the newest checkpoint of this job that `saved` had reported before this process was started, or None.
    That checkpoint is complete, unlike a folder that an interrupted save has left."""
    path = os.environ.get("TRAINYARD_LAST_CHECKPOINT")
    return pathlib.Path(path) if path else None


def should_save():
    """Whether the ranks should save after this step, because `trainctl checkpoint now` or Job.save() requests it. True
    once for each request.

    Rank 0 receives the requests. Like should_stop, this is a collective if torch.distributed is initialised with
    several ranks: every rank must call it at the same point of its loop."""
    global _answered, _asked_step
    newest = 0
    if os.environ.get("TRAINYARD_RANK") == "0":
        channel = _report._open()
        if not channel.accepts_saves:
            channel.accepts_saves = channel.send({"kind": "accepts_saves"})
        newest = channel.newest_save_request()
    newest = script.largest_of_ranks(newest)
    if newest <= _answered:
        return False
    _answered, _asked_step = newest, _report._open().last_step
    return True


def _write_to_disk(path):
    """Writes the files of a checkpoint to the disk, and returns their size in bytes."""
    if not path.is_dir():
        size = _sync(path)
    else:
        size = 0
        for folder, _, names in os.walk(path):
            for name in names:
                try:
                    size += _sync(os.path.join(folder, name))
                except FileNotFoundError:
                    pass  # a temporary file that was removed meanwhile
            _sync(folder)
    _sync(path.parent)
    return size


def _sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def saved(step, path):
    """Reports that the checkpoint of `step`, a file or folder, is complete: all ranks have written their parts. Writes
    it to the disk (fsync) first, and raises OSError if that fails. If nothing is at `path`, only rank 0 raises OSError.

    The checkpoint that rank 0 reports is listed by `trainctl checkpoint ls`, answers a request to save, and is the
    last_checkpoint() of the processes that are started later. Steps are counted as in `report`."""
    path = pathlib.Path(path).absolute()
    # RANK is set by torchrun, too: without Trainyard, or inside of a rank of Trainyard.
    is_first = (os.environ.get("RANK") or os.environ.get("TRAINYARD_RANK") or "0") == "0"
    with _report.phase("save"):
        try:
            size = _write_to_disk(path)
        except FileNotFoundError:
            if is_first:
                raise
            return
    if os.environ.get("TRAINYARD_RANK") != "0":
        return
    text = str(path)
    if len(os.fsencode(path)) > _PATH_BYTES or not text.isprintable():
        raise ValueError(f"saved: the path must be printable text of at most {_PATH_BYTES} bytes, found {text!r}")
    channel = _report._open()
    # A save that began before the request does not answer it.
    answer = _answered if step >= _asked_step else channel.last_answer
    # A checkpoint that was reported before may be reported again, to answer a new request.
    last = channel.last_saved - 1 if answer > channel.last_answer else channel.last_saved
    if not channel.is_open() or not _report._check_step(step, last, "saved"):
        return
    if channel.send({"kind": "saved", "step": int(step), "path": text, "size_bytes": size, "save_request": answer},
                    wait_s=_SEND_WAIT_S):
        channel.last_saved, channel.last_answer = int(step), answer
    else:
        _report._warn(f"the checkpoint of step {step} could not be reported to Trainyard")
