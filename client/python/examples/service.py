"""A service submits jobs safely and reacts to errors by their reasons: python3 service.py

Needs the variable TRAINYARD_COORDINATOR."""

import warnings

import trainyard
from trainyard import errors, schema


def main():
    warnings.simplefilter("error")
    job = {"name": "from-service", "command": {"argv": ["true"], "workdir": "/"}, "resources": {"ranks": 1}}
    with trainyard.Client() as client:
        # This program chooses the id, so it can repeat the call after a lost answer and after its own restart.
        first = client.submit(job, job_id="serviceorder17", default_run_root="/tmp")
        again = client.submit(job, job_id="serviceorder17", default_run_root="/tmp")
        print("submitted once:", first == again)
        try:
            client.submit({**job, "name": "another"}, job_id="serviceorder17", default_run_root="/tmp")
        except errors.AlreadyExistsError as error:
            print(error.reason, error.metadata["job_id"])

        try:
            client.submit({"name": "Wrong Name", "command": {"argv": ["true"]}})
        except errors.InvalidArgumentError as error:
            print(error.reason, sorted(error.violations))

        # The watch begins at the version that was read: no event is lost, and none comes twice.
        seen = client.get(first.job_id)
        for _event in client.watch(first.job_id, seen.resource_version, seen.last_step, seen.last_eval_step):
            pass  # your program would use the event here
        print(schema.state_name(client.get(first.job_id).state))

        # A change that is made only if the job has not changed since it was read.
        try:
            client.pause(first.job_id, expected_version=seen.resource_version)
        except errors.AbortedError as error:
            print(error.reason, int(error.metadata["resource_version"]) > seen.resource_version)
        except errors.FailedPreconditionError as error:
            # The job had ended when it was read, so its version still matches. Prints the same line in both cases.
            print("VERSION_MISMATCH", error.reason == "WRONG_STATE")

        print([job.job_id for job in client.iter_jobs(states=["SUCCEEDED"])])
        print([host.name for host in client.iter_hosts()])


if __name__ == "__main__":
    main()
