"""A training script that saves and exits when its job is paused, drained or cancelled, and resumes from its own file:

    trainctl launch stop_and_resume.py STATE_FILE STEPS
"""

import os
import pathlib
import sys
import time

import trainyard


def save(path, step):
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(str(step))
    os.replace(temporary, path)


def main():
    path, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    first = int(path.read_text()) + 1 if path.exists() else 1
    trainyard.stop_requested()  # from here on, SIGTERM does not end this process
    print(f"first step {first}", flush=True)
    for step in range(first, steps + 1):
        time.sleep(0.01)  # the work of a step
        if trainyard.should_stop():
            save(path, step)
            print(f"stopped after step {step}", flush=True)
            return
    save(path, steps)
    print("done", flush=True)


if __name__ == "__main__":
    main()
