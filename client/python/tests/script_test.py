"""What a script learns about the end of its job. Each test runs a new process, because signal handlers remain."""

import subprocess
import sys
import textwrap

import pytest


def run(text):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=60,
                          check=False)


def test_sigterm_is_noted_from_the_first_call_on_and_the_earlier_handler_runs_too():
    done = run("""
        import os, signal, sys
        import trainyard
        assert "grpc" not in sys.modules and "google.protobuf" not in sys.modules
        signal.signal(signal.SIGTERM, lambda *_: print("earlier"))
        print(trainyard.should_stop())
        os.kill(os.getpid(), signal.SIGTERM)
        print(trainyard.should_stop(), trainyard.stop_requested())
    """)

    assert done.stdout.split() == ["False", "earlier", "True", "True"], done.stderr


def test_before_the_first_call_sigterm_ends_the_process():
    assert run("import os, trainyard; os.kill(os.getpid(), 15)").returncode == -15


def test_a_first_call_outside_of_the_main_thread_warns():
    done = run("""
        import threading, trainyard
        thread = threading.Thread(target=lambda: print(trainyard.stop_requested()))
        thread.start(); thread.join()
    """)

    assert done.stdout == "False\n"
    assert "must be in the main thread" in done.stderr


FORKS = """
    import multiprocessing, os, signal, time, trainyard
    os.setsid()  # as the shim does
    trainyard.stop_requested()
    reading, writing = os.pipe()

    def work(asks):
        if asks: trainyard.stop_requested()
        os.write(writing, b"x")
        while not trainyard.script._received: time.sleep(0.01)
        os._exit(7)

    def start(asks):
        child = multiprocessing.get_context("fork").Process(target=work, args=(asks,))
        child.start()
        os.read(reading, 1)
        return child
"""


def test_a_worker_is_not_signalled_with_the_rank_and_can_be_terminated(monkeypatch):
    """As a worker of a DataLoader, whose end by SIGTERM would be an error before the script can save."""
    monkeypatch.setenv("TRAINYARD_JOB_ID", "abcdefgh")
    done = run(FORKS + """
    child = start(asks=False)
    print(os.getpgid(child.pid) == child.pid)
    os.killpg(0, signal.SIGTERM)
    child.terminate()
    child.join()
    print(trainyard.stop_requested(), child.exitcode)
    """)

    assert done.stdout.split() == ["True", "True", "-15"], done.stderr


def test_a_forked_process_that_asks_for_requests_is_signalled_with_the_rank(monkeypatch):
    monkeypatch.setenv("TRAINYARD_JOB_ID", "abcdefgh")
    done = run(FORKS + """
    child = start(asks=True)
    os.killpg(0, signal.SIGTERM)
    child.join()
    print(child.exitcode)
    """)

    assert done.stdout == "7\n", done.stderr


def test_a_process_that_a_worker_has_forked_is_signalled_with_the_rank_if_it_asks(monkeypatch):
    """It joins the group of the rank, not the one of the worker."""
    monkeypatch.setenv("TRAINYARD_JOB_ID", "abcdefgh")
    done = run(FORKS + """
    rank_group = os.getpgrp()
    result_reading, result_writing = os.pipe()

    def work_of_worker():
        child = start(asks=True)
        os.write(result_writing, b"y" if os.getpgid(child.pid) == rank_group else b"n")
        child.join()
        os._exit(child.exitcode)

    worker = multiprocessing.get_context("fork").Process(target=work_of_worker)
    worker.start()
    print(os.read(result_reading, 1).decode())
    os.killpg(0, signal.SIGTERM)
    worker.join()
    print(worker.exitcode)
    """)

    assert done.stdout.split() == ["y", "7"], done.stderr


SPAWNS = """
import multiprocessing, os, signal, sys, time
import trainyard

def work(connection, asks):
    if asks: trainyard.stop_requested()
    connection.send(os.getpgrp())
    while not trainyard.script._received: time.sleep(0.01)
    os._exit(7)

if __name__ == "__main__":
    os.setsid()
    trainyard.stop_requested()
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=work, args=(theirs, "asks" in sys.argv))
    child.start()
    print("in the group" if ours.recv() == os.getpgrp() else "alone")
    os.killpg(0, signal.SIGTERM)
    if "asks" not in sys.argv: child.terminate()
    child.join()
    print(trainyard.stop_requested(), child.exitcode)
"""


@pytest.mark.parametrize("asks, lines", [([], ["alone", "True -15"]), (["asks"], ["in the group", "True 7"])])
def test_a_spawned_worker_is_signalled_with_the_rank_only_if_it_asks(monkeypatch, tmp_path, asks, lines):
    monkeypatch.setenv("TRAINYARD_JOB_ID", "abcdefgh")
    script = tmp_path / "script.py"
    script.write_text(SPAWNS)

    done = subprocess.run([sys.executable, script, *asks], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.splitlines() == lines, done.stderr


def test_outside_of_a_job_a_worker_stays_in_its_group_and_can_be_terminated(monkeypatch):
    monkeypatch.delenv("TRAINYARD_JOB_ID", raising=False)
    done = run(FORKS + """
    child = start(asks=False)
    print(os.getpgid(child.pid) == os.getpgrp())
    child.terminate()
    child.join()
    print(child.exitcode)
    """)

    assert done.stdout.split() == ["True", "-15"], done.stderr


TRANSFORMERS = """
    import os, signal, sys, types
    sys.modules["transformers"] = types.ModuleType("transformers")
    sys.modules["transformers"].TrainerCallback = object
    from trainyard import saving
    from trainyard.integrations.transformers import SaveOnRequest, StopOnRequest
    args = types.SimpleNamespace(output_dir="out")
    state = types.SimpleNamespace(global_step=1, is_world_process_zero=True)

    def control(**values):
        return types.SimpleNamespace(**{"should_evaluate": True, "should_save": False, "should_training_stop": False,
                                        **values})
"""


def test_a_trainer_of_transformers_that_is_stopped_saves_once_and_does_not_evaluate_before():
    done = run(TRANSFORMERS + """
    stop, running, stopping, ended = StopOnRequest(), control(), control(), control(should_save=True)
    stop.on_train_begin(args, state, running)
    stop.on_step_end(args, state, running)
    stop.on_epoch_end(args, state, running)
    os.kill(os.getpid(), signal.SIGTERM)
    stop.on_step_end(args, state, stopping)
    stop.on_epoch_end(args, state, ended)
    for one in (running, stopping, ended):
        print(one.should_evaluate, one.should_save, one.should_training_stop)
    """)

    assert done.stdout.splitlines() == ["True False False", "False True True", "False False False"], done.stderr


def test_a_request_to_save_that_the_trainer_of_transformers_drops_is_repeated_until_it_has_saved():
    done = run(TRANSFORMERS + """
    requests = [True, False, False]
    saving.should_save = lambda: requests.pop(0)
    saving.saved = lambda step, path: print("saved", path)
    save = SaveOnRequest()
    for saves in (False, True, False):
        now = control()
        save.on_step_end(args, state, now)
        print(now.should_save)
        if saves: save.on_save(args, state, now)
    """)

    assert done.stdout.splitlines() == ["True", "True", "saved out/checkpoint-1", "False"], done.stderr


@pytest.mark.parametrize("backend, has_gpu, bound, device", [
    ("undefined", False, "None", "cpu"),  # torch 2.6 and newer, if the script names no backend
    ("undefined", True, "None", "cuda"),
    ("gloo", True, "None", "cpu"),
    ("nccl", True, "None", "cuda"),  # the current GPU
    ("nccl", True, "'cuda:3'", "cuda:3"),  # init_process_group(device_id=...)
    ("nccl", True, "", "cuda"),  # torch before 2.3 binds no device
])
def test_ranks_agree_on_the_device_of_their_group(backend, has_gpu, bound, device):
    done = run(f"""
        import sys, types
        torch, distributed = types.ModuleType("torch"), types.ModuleType("torch.distributed")
        distributed.is_available = distributed.is_initialized = lambda: True
        distributed.get_world_size = lambda: 2
        distributed.get_backend = lambda: "{backend}"
        world = types.SimpleNamespace({bound and "bound_device_id=" + bound})
        distributed.group = types.SimpleNamespace(WORLD=world)
        distributed.ReduceOp = types.SimpleNamespace(MAX="max")
        distributed.all_reduce = lambda tensor, op: None
        torch.cuda = types.SimpleNamespace(is_available=lambda: {has_gpu})
        torch.tensor = lambda values, device: types.SimpleNamespace(item=lambda: device)
        sys.modules.update({{"torch": torch, "torch.distributed": distributed}})
        from trainyard import script
        print(script.largest_of_ranks(1))
    """)

    assert done.stdout == device + "\n", done.stderr
