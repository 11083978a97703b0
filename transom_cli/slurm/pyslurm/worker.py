"""The process that imports pyslurm: a script for any Python that has it. One JSON line per call.

    {"call": "jobs", "with": {...}}  ->  {"value": ...} | {"error": "Slurm's message"} | {"lacks": "why pyslurm cannot"}

It knows nothing of transom and keeps no state between calls, so it can be killed at any time. The answers go to a copy
of stdout, so nothing that libslurm or a plugin prints can mix with them.
"""

import os
import sys

if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):  # noqa: PTH100, PTH120 - before anything else is imported
    del sys.path[0]  # its files must not be imported as packages of these names

import ctypes
import datetime
import json
import platform

os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"  # else the import exits without a configuration


class Lacks(Exception):
    """pyslurm cannot do this, or not correctly; Slurm's commands can."""


def hello(pyslurm):
    return {"pyslurm": pyslurm.__version__, "python": platform.python_version()}


def cluster(pyslurm):
    config = pyslurm.slurmctld.Config.load()
    return {"release": config.version, "name": config.cluster_name}


def jobs(pyslurm):
    """Return the calling user's jobs and the number of all jobs: pyslurm can only load those of all users."""
    me = os.getuid()
    every = pyslurm.Jobs.load()
    return {"mine": [describe(job) for job in every.values() if job.user_id == me], "of": len(every)}


def job(pyslurm, job_id):
    found = pyslurm.Job.load(job_id)
    more = {"Excluded": found.excluded_nodes or "", "CpusPerTask": found.cpus_per_task or 1}
    return {**describe(found), **more, "Output": getattr(found, "standard_output", "") or ""}


EXIT_CODES = "pyslurm reports wrong exit codes from 128 on, so it is not used for failed jobs"
WITHOUT_EXIT_CODE = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "COMPLETED"}


def describe(job):
    """Describe a job with the field names of Slurm's commands."""
    if job.state not in WITHOUT_EXIT_CODE or job.state_reason == "NonZeroExitCode":
        # pyslurm subtracts 128 from every exit code of 128 and more: 137 becomes 9, and 221 becomes 93
        raise Lacks(EXIT_CODES)
    if type(job.priority) is not int:
        raise Lacks(f"pyslurm reports the priority {job.priority}, from which a hold cannot be recognised")
    return {
        "Id": job.id, "State": job.state, "Reason": job.state_reason or "", "Priority": job.priority,
        "Used": clock(job.run_time or 0), "Start": moment(job.start_time), "End": moment(job.end_time),
        "Restarts": job.requeue_count or 0, "Requeue": "1" if job.is_requeueable else "0",
        "Nodes": job.allocated_nodes or "", "BatchHost": job.batch_host or "", "NumNodes": job.num_nodes or 0,
        "Name": job.name or "", "Comment": job.comment or "", "Partition": job.partition or "",
        "Command": getattr(job, "command", "") or "", "User": job.user_name or str(job.user_id),
        "Exit": [job.exit_code or 0, job.exit_code_signal or 0],
    }  # fmt: skip


def clock(seconds):
    days, rest = divmod(int(seconds), 86400)
    return f"{days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def moment(stamp):
    """Format a time as Slurm prints it. A start without an end has one in the year 2106 or later."""
    if not stamp or stamp >= 2**32 - 2:
        return "Unknown"
    return datetime.datetime.fromtimestamp(stamp).isoformat()


def nodes(pyslurm, names):
    """Return the named nodes in their order, or all. A few are loaded one by one, to avoid loading thousands."""
    if names and len(names) <= 4:
        return [describe_node(pyslurm.Node.load(name)) for name in names]
    every = {node.name: node for node in pyslurm.Nodes.load().values()}
    missing = [name for name in names if name not in every]
    if missing:
        raise pyslurm.RPCError(msg=f"Node {missing[0]} not found")
    return [describe_node(node) for node in (map(every.get, names) if names else every.values())]


def describe_node(node):
    reason = node.reason or ""
    return {
        "NodeName": node.name, "State": node.state, "NodeAddr": node.address or "", "Port": str(node.slurmd_port or ""),
        "Reason": reason, "ReasonUser": (node.reason_user or "") if reason else "",
        "ReasonAt": moment(getattr(node, "reason_time", 0)) if reason else "",
    }  # fmt: skip


def requeue(pyslurm, job_id, hold):
    pyslurm.Job(job_id).requeue(hold=hold)


def update(pyslurm, job_id, **changes):
    pyslurm.Job(job_id).modify(pyslurm.JobSubmitDescription(**changes))


def release(pyslurm, job_id):
    pyslurm.Job(job_id).release()


def cancel(pyslurm, job_id):
    """Cancel a job. Succeeds for a job that Slurm has forgotten, as it should.

    pyslurm judges this call only by errno, even if it succeeded and errno comes from elsewhere.
    """
    location = ctypes.CDLL(None).__errno_location
    location.restype = ctypes.POINTER(ctypes.c_int)
    location()[0] = 0
    try:
        pyslurm.Job(job_id).cancel()
    except pyslurm.RPCError as error:
        if 0 < (error.errno or 0) < 1000:  # an errno of the system; Slurm's own start at 1000
            raise Lacks(f"pyslurm does not report whether the call succeeded ({error})") from error
        if "try again later" in str(error):
            raise Lacks(f"scancel retries by itself when Slurm answers: {error}") from error
        raise


def update_node(pyslurm, name, **changes):
    pyslurm.Node(name).modify(pyslurm.Node(**changes))


CALLS = {f.__name__: f for f in (hello, cluster, jobs, job, nodes, requeue, update, release, cancel, update_node)}


def answer(pyslurm, line):
    try:
        question = json.loads(line)
        return {"value": CALLS[question["call"]](pyslurm, **question["with"])}
    except Lacks as error:
        return {"lacks": str(error)}
    except pyslurm.RPCError as error:
        return {"error": str(error)}
    except Exception as error:  # an attribute of another release, bytes that are not UTF-8, ...
        return {"lacks": f"{type(error).__name__}: {error}"}


def main():
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    import pyslurm

    pyslurm.slurm_init()
    for line in sys.stdin:
        answers.write(json.dumps(answer(pyslurm, line)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
