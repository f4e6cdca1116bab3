"""Submitting to SLURM, through Submitit: one array of jobs."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from launch import LaunchError, python_path
from launch.job import Job
from launch.profile import SlurmProfile
from launch.records import SETUP_FAILED, note_stderr

SAME = (
    *("partition", "account", "qos", "constraint", "gres", "gpus_per_node", "nodes"),
    *("cpus_per_task", "signal_delay_s", "array_parallelism"),
)
"""Keys of a profile that Submitit's SlurmExecutor calls the same."""

MEM_PER_UNIT = {"mem-per-cpu", "mem-per-gpu"}  # Options of sbatch that exclude its mem

TRAP = (
    """trap 'code=$?; if [ ${#BASH_SOURCE[@]} = 1 ]; then """
    f"""echo "{SETUP_FAILED} (exit status $code): $BASH_COMMAND" >&2; exit $code; fi' ERR"""
)
"""Ends a job's script at a command of its own that fails; commands in functions and sourced files may fail."""


def check() -> None:
    """Raises LaunchError without a SLURM to submit to, or in a shell whose variables break requeuing."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise LaunchError(
            "sbatch and srun are not on PATH: this is no SLURM cluster, or not its login node "
            "(hydra/launcher=local runs on this machine; docs/clusters.md starts a SLURM on it)"
        )
    if os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2") != "USR2":
        raise LaunchError(
            "SUBMITIT_PREEMPT_SIGNAL must not be set: a preempted job would end as failed and run again besides"
        )


def submit(groups: Sequence[Sequence[Path]], profile: SlurmProfile, name: str) -> str:
    """Submits a job for each group of run directories, as one array; returns its id. Raises LaunchError without one."""
    asked = profile.sbatch.get("export", os.environ.get("SBATCH_EXPORT", "ALL"))
    if profile.environment and asked != "ALL":
        raise LaunchError(
            f"hydra.launcher.environment: sbatch would pass on {asked} only; "
            "leave export out of hydra.launcher.sbatch, and unset SBATCH_EXPORT"
        )
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, environment_variables

    executor = SlurmExecutor(folder=profile.folder, max_num_timeout=profile.max_num_timeout)
    executor.update_parameters(**_parameters(profile), job_name=name)
    try:
        # Submitit names the jobs' files after sbatch has taken the jobs
        with ctrl_c_waits(), environment_variables(**profile.environment):
            jobs = executor.submit_array([Job([str(path) for path in group]) for group in groups])
            note_stderr(groups[0][0].parent, name, [job.paths.stderr for job in jobs])
    except FailedJobError as error:
        reasons = [line for line in str(error).splitlines() if line.startswith("sbatch: error")]
        said = "\n".join(reasons) or str(error)
        if "job array" in said:
            said = _too_many(len(groups), profile.runs_per_job)
        raise LaunchError(said) from None
    return jobs[0].job_id.partition("_")[0]


def described(profile: SlurmProfile, jobs: int) -> str:
    """Returns in words what `submit` asks the cluster for."""
    default = "the cluster's default"
    folder = profile.folder.replace("%j", "JOB_0" if jobs > 1 else "JOB")
    gpus = profile.gres or profile.gpus_per_node
    asked = {
        "account": profile.account or default,
        "partition": profile.partition or default,
        "nodes": profile.nodes if profile.nodes > 1 else None,
        "GPUs": gpus if gpus is not None else "none asked for",
        "CPUs": profile.cpus_per_task * profile.tasks_per_node,
        "memory": _parameters(profile)["mem"] or default,
        "time": f"{profile.timeout_min} minutes",
        **profile.sbatch,
        "array": f"of {jobs}, {min(jobs, profile.array_parallelism)} at once",
        "script": f"{folder}/JOB_submission.sh",
    }
    return ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)


def _too_many(jobs: int, size: int) -> str:
    """Returns what to do about an array that the cluster finds too large, with its limit if scontrol tells it."""
    with suppress(OSError, subprocess.SubprocessError):
        asked = ["scontrol", "show", "config"]
        shown = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout
        if (found := re.search(r"MaxArraySize\s*=\s*(\d+)", shown)) and int(found[1]) > 0:
            most = int(found[1])
            limited = f"`zo submit ... --limit {most * size}`"
            right = f"{limited} submits as many runs, and again the next"
            more = f"hydra.launcher.runs_per_job={-(-jobs * size // most)} makes fewer jobs"
            return f"{jobs} jobs are more than the cluster's MaxArraySize, {most}; {right}; {more}"
    right = "`zo submit ... --limit N` submits N runs, and again the next"
    return f"sbatch refuses an array of {jobs} jobs; see MaxArraySize in `scontrol show config`; {right}"


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Lets Ctrl-C wait until the body has ended, in this process and in those that the body starts."""
    pressed: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a new process inherits it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if pressed:
        raise KeyboardInterrupt


def _parameters(profile: SlurmProfile) -> dict[str, Any]:
    """Returns the profile in the words of Submitit's SlurmExecutor.

    The script has the names of the profile's variables alone, which may be secrets. It keeps their values over `setup`.
    """
    keep = [f"zo_{key}=${key}" for key in profile.environment]
    restore = [f"export {key}=$zo_{key}" for key in profile.environment]
    path = f"export PYTHONPATH={shlex.quote(python_path())}"
    per_unit = {key.replace("_", "-") for key in profile.sbatch} & MEM_PER_UNIT
    mem = profile.mem_gb if not per_unit else None
    same = {key: value for key in SAME if (value := getattr(profile, key)) is not None}
    return {
        **same,
        "ntasks_per_node": profile.tasks_per_node,
        "mem": None if mem is None else f"{round(1024 * mem)}M",
        "wckey": None,  # Submitit's own is "submitit", which clusters that check the key refuse
        "time": profile.timeout_min,
        "setup": [*keep, TRAP, *profile.setup, "trap - ERR", path, *restore],
        "additional_parameters": {"requeue": True, **profile.sbatch},
    }
