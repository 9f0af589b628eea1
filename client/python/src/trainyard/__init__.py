"""Trainyard in Python: a client of the coordinator, and helpers for training scripts (docs/python.md).

    import trainyard
    client = trainyard.Client("127.0.0.1:7070")
    job = client.submit_job({"name": "hello", "command": {"argv": ["python3", "train.py"]}, "resources": {"ranks": 2}})
    for event in job.watch(): ...

Importing the package loads neither gRPC nor the schema; both are loaded when a client is used.
"""

from trainyard.errors import TrainyardError  # noqa: F401
from trainyard._report import phase, report, report_eval  # noqa: F401
from trainyard.saving import checkpoint_dir, last_checkpoint, saved, should_save  # noqa: F401
from trainyard.script import should_stop, stop_requested  # noqa: F401

# The module of the package in which each name is defined; None: the name is that of a module.
_LAZY = {"Client": "client", "AsyncClient": "aio", "Job": "job", "schema": None, "job_spec": "schema"}


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module 'trainyard' has no attribute '{name}'")
    import importlib
    module = importlib.import_module(f"trainyard.{_LAZY[name] or name}")
    return module if _LAZY[name] is None else getattr(module, name)
