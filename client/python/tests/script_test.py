"""What a script learns about the end of its job. Each test runs a new process, because signal handlers remain."""

import subprocess
import sys
import textwrap


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
