"""Submits a small job and prints its progress: python3 submit_and_watch.py TEXT_FILE  (needs TRAINYARD_COORDINATOR)"""

import sys

import trainyard


def main():
    job = {
        "name": "from-python",
        "train": {
            "model": {"layers": 1, "heads": 2, "width": 16, "context": 16},
            "data": {"text": [sys.argv[1]]},
            "batch": {"global": 4, "micro": 2},
            "steps": 10,
        },
        "resources": {"ranks": 2, "threads_per_rank": 1, "device": "cpu"},
    }
    with trainyard.Client() as client:
        submitted = client.submit_job(job)
        for event in submitted.watch():
            if event.WhichOneof("kind") == "step":
                print(f"step {event.step.step}: loss {event.step.loss:.4f}")
        print(submitted.state)
        print(client.jobs(limit=5))


if __name__ == "__main__":
    main()
