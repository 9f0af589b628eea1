"""A training script that saves every 100 steps and when `trainctl checkpoint now` requests it, and resumes from its
newest complete checkpoint:

    trainctl launch save_on_request.py STEPS
"""

import pathlib
import sys
import time

import trainyard


def save(step):
    path = trainyard.checkpoint_dir() / f"step-{step}"
    path.write_text(str(step))
    trainyard.saved(step, path)


def evaluate(step):
    with trainyard.phase("evaluate"):  # may take longer than a step
        trainyard.report_eval(step, 1 / step)


def main():
    steps = int(sys.argv[1])
    newest = trainyard.last_checkpoint()
    first = int(pathlib.Path(newest).read_text()) + 1 if newest else 1
    print(f"first step {first}", flush=True)
    trainyard.stop_requested()  # from here on, SIGTERM does not end this process
    for step in range(first, steps + 1):
        time.sleep(0.02)  # the work of a step
        trainyard.report(step, loss=1 / step)
        if step % 100 == 0:
            evaluate(step)
        stops = trainyard.should_stop()
        if trainyard.should_save() or stops or step % 100 == 0 or step == steps:
            save(step)
        if stops:
            return


if __name__ == "__main__":
    main()
