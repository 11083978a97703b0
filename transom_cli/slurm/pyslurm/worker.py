"""The process that imports pyslurm: a script of its own, for any Python that has it. One JSON line a question.

    {"call": "jobs", "with": {...}}  ->  {"value": ...} | {"error": "Slurm's words"} | {"lacks": "why pyslurm cannot"}

It knows nothing of transom, and keeps nothing between two questions: it can be killed at any moment. What libslurm or
a plugin prints cannot get into the answers, which go to a copy of stdout.
"""

import os
import sys

if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):  # noqa: PTH100, PTH120 - before anything else is imported
    del sys.path[0]  # its files must not be taken for packages of these names

import ctypes
import datetime
import json
import platform

os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"  # without a usable configuration the import would end the process


class Lacks(Exception):
    """pyslurm cannot do this, or not rightly; the command line can."""


def hello(pyslurm):
    return {"pyslurm": pyslurm.__version__, "python": platform.python_version()}


def cluster(pyslurm):
    config = pyslurm.slurmctld.Config.load()
    return {"release": config.version, "name": config.cluster_name}


def jobs(pyslurm):
    """The calling user's, and of how many: it can only load everybody's."""
    me = os.getuid()
    every = pyslurm.Jobs.load()
    return {"mine": [told(job) for job in every.values() if job.user_id == me], "of": len(every)}


def job(pyslurm, job_id):
    found = pyslurm.Job.load(job_id)
    more = {"Excluded": found.excluded_nodes or "", "CpusPerTask": found.cpus_per_task or 1}
    return {**told(found), **more, "Output": getattr(found, "standard_output", "") or ""}


WITHOUT_EXIT_CODE = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "COMPLETED"}


def told(job):
    """A job in the words of Slurm's own commands."""
    if job.state not in WITHOUT_EXIT_CODE or job.state_reason == "NonZeroExitCode":
        # pyslurm takes 128 off every exit code of 128 and more: 137 comes out as 9, and 221 as 93
        raise Lacks("pyslurm tells an exit code of 128 and more as 128 less, so of a job that failed it is not asked")
    if type(job.priority) is not int:
        raise Lacks(f"pyslurm tells the priority {job.priority}, by which a job is held or not")
    return {
        "Id": job.id, "State": job.state, "Reason": job.state_reason or "", "Priority": job.priority,
        "Used": clock(job.run_time or 0), "Start": moment(job.start_time), "End": moment(job.end_time),
        "Restarts": job.requeue_count or 0, "Requeue": "1" if job.is_requeueable else "0",
        "Nodes": job.allocated_nodes or "", "BatchHost": job.batch_host or "", "NumNodes": job.num_nodes or 0,
        "Name": job.name or "", "Comment": job.comment or "", "Partition": job.partition or "",
        "User": job.user_name or str(job.user_id), "Exit": [job.exit_code or 0, job.exit_code_signal or 0],
    }  # fmt: skip


def clock(seconds):
    days, rest = divmod(int(seconds), 86400)
    return f"{days}-{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def moment(stamp):
    """Seconds since 1970 as Slurm prints them; a start without an end has one in the year 2106 or later."""
    if not stamp or stamp >= 2**32 - 2:
        return "Unknown"
    return datetime.datetime.fromtimestamp(stamp).isoformat()


def nodes(pyslurm, names):
    """The named ones in their order, or all. A few are asked for one by one, so that thousands are not sent."""
    if names and len(names) <= 4:
        return [told_node(pyslurm.Node.load(name)) for name in names]
    every = {node.name: node for node in pyslurm.Nodes.load().values()}
    missing = [name for name in names if name not in every]
    if missing:
        raise pyslurm.RPCError(msg=f"Node {missing[0]} not found")
    return [told_node(node) for node in (map(every.get, names) if names else every.values())]


def told_node(node):
    reason = node.reason or ""
    return {
        "NodeName": node.name, "State": node.state, "NodeAddr": node.address or "", "Port": str(node.slurmd_port or ""),
        "Reason": reason, "ReasonUser": (node.reason_user or "") if reason else "",
    }  # fmt: skip


def requeue(pyslurm, job_id, hold):
    pyslurm.Job(job_id).requeue(hold=hold)


def update(pyslurm, job_id, **changes):
    pyslurm.Job(job_id).modify(pyslurm.JobSubmitDescription(**changes))


def release(pyslurm, job_id):
    pyslurm.Job(job_id).release()


def cancel(pyslurm, job_id):
    """Of a job that Slurm has forgotten it says nothing, as it should be."""
    with_errno(pyslurm, lambda: pyslurm.Job(job_id).cancel())


def signal(pyslurm, job_id, name, batch):
    with_errno(pyslurm, lambda: pyslurm.Job(job_id).send_signal(f"SIG{name}", steps="batch" if batch else "children"))


def with_errno(pyslurm, send):
    """pyslurm judges this call by errno alone, also where it went well and errno is some other's."""
    location = ctypes.CDLL(None).__errno_location
    location.restype = ctypes.POINTER(ctypes.c_int)
    location()[0] = 0
    try:
        send()
    except pyslurm.RPCError as error:
        if 0 < (error.errno or 0) < 1000:  # the system's; Slurm's own begin above
            raise Lacks(f"pyslurm cannot tell whether it went well ({error})") from error
        if "try again later" in str(error):
            raise Lacks(f"scancel tries again by itself where Slurm says: {error}") from error
        raise


def update_node(pyslurm, name, **changes):
    pyslurm.Node(name).modify(pyslurm.Node(**changes))


CALLS = {
    f.__name__: f for f in (hello, cluster, jobs, job, nodes, requeue, update, release, cancel, signal, update_node)
}


def answer(pyslurm, line):
    try:
        question = json.loads(line)
        return {"value": CALLS[question["call"]](pyslurm, **question["with"])}
    except Lacks as error:
        return {"lacks": str(error)}
    except pyslurm.RPCError as error:
        return {"error": str(error)}
    except Exception as error:  # an attribute of another release, bytes that are no UTF-8, ...
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
