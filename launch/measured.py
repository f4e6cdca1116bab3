"""Makes the runs that this suite measures, most valuable first, within a time. The same command goes on.

    make measured                                      25 minutes, then tables, figures and the page
    python -m launch.measured --minutes 120
    python -m launch.measured --only table4 table4_fast
    python -m launch.measured --dry-run                list the stages and what is left of each

With a GPU: table4, table4_fast and table4_factors, one run at a time since they are timed, then the study of
SmolLM2-135M, several runs at once on each GPU. Without one: the small study, a run per core. Nothing is asked of a
hub. Runs that the time ends save and are interrupted.

Exit status: 0 all that this machine can make is there; 1 runs failed; 2 it cannot begin; 3 the time was up; 130 or 143
it was told to stop, and the runs have saved.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launch import local
from launch.profile import register
from launch.stages import STAGES, Stage
from launch.submit import UNUSABLE, Submission
from launch.sweep import Sweep, counted, standings
from launch.watch import Board
from zo import config
from zo.config import ConfigError
from zo.lm.config import ModelError
from zo.lm.tokenizer import load_tokenizer
from zo.run.lock import LockedError, held

GIB_PER_RUN = 3.0
"""GPU memory of a run of the study, with its CUDA context."""

FAILED, TIME_UP = 1, 3

SAVING_S = 20.0
"""Seconds before the end at which runs are told to save; those that have not saved at the end are killed."""


def slots(stage: Stage, gpus: Sequence[str], processes: int | None) -> int:
    """Returns how many runs of a stage share a GPU, or the processor: a core each, and as many as the memory holds."""
    if stage.alone:
        return 1
    cores = max(1, len(os.sched_getaffinity(0)) // max(1, len(gpus)))
    fit = int(_memory_gib() // GIB_PER_RUN) if stage.gpu else cores
    return processes or max(1, min(cores, fit))


def _memory_gib() -> float:
    """Returns the memory of the GPU that has least; 0 if the driver does not say."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return min(float(line) for line in done.stdout.split()) / 1024
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0.0


def overrides_of(stage: Stage, out: Path, processes: int = 1) -> list[str]:
    """Returns a stage's overrides; a stage for a GPU never runs on the processor by mistake."""
    device = ["device=cuda"] if stage.gpu else []
    launcher = ["hydra/launcher=local", f"hydra.launcher.processes={processes}"]
    return [*stage.overrides, *device, f"out={out}", *launcher]


def make(stage: Stage, args: argparse.Namespace, gpus: Sequence[str], deadline: float) -> int:
    """Makes what is missing of a stage until a deadline, by `time.monotonic()`.

    Returns:
        0 if all ended, 1 if a run failed, 3 if something is left, 130 or 143 if this process was told to stop.
    """
    submission = Submission(overrides_of(stage, args.out, slots(stage, gpus, args.processes)))
    print(f"{time.strftime('%H:%M:%S')}  {stage.name}", flush=True)
    for run in {run.cfg.model.path: run for run in submission.sweep.runs}.values():
        if run.cfg.model.weights == "pretrained":
            load_tokenizer(run.cfg.model)  # converts weights once, before several runs do
    chosen, _ = submission.give(args.retry_failed, detach=False)
    with Board(submission.sweep, jobs_go_on=False) as board:
        if chosen:
            pool = local.pool_of(submission.folder, gpus[:1] if stage.alone else gpus)
            pool.changed = board.refresh
            pool.deadline, pool.saving_s = deadline - SAVING_S, SAVING_S
            pool.run()
            if pool.signals:
                return 128 + pool.signals[0]
        return board.ended()


def chosen_stages(only: Sequence[str] | None, gpu: bool) -> list[Stage]:
    """Returns the stages that this machine can make, most valuable first; says which are left out, and why."""
    found = []
    for stage in STAGES:
        if only is not None and stage.name not in only:
            continue
        problem = stage.missing() if gpu or not stage.gpu else "no GPU that PyTorch can use here"
        if problem and (only or stage.gpu == gpu):
            print(f"{stage.name} is left out: {problem}")
        elif not problem and (only or stage.gpu == gpu):
            found.append(stage)
    return found


def run(stages: Sequence[Stage], args: argparse.Namespace, gpus: Sequence[str]) -> int:
    """Makes stages one after another within the time; returns the exit status."""
    deadline = time.monotonic() + 60 * args.minutes
    codes = [0]
    for stage in stages:
        if time.monotonic() >= deadline - 2 * SAVING_S:
            print(f"no time left for {stage.name} and what comes after it")
            codes.append(TIME_UP)
            break
        try:
            codes.append(make(stage, args, gpus, deadline))
        except (*UNUSABLE, ModelError) as error:
            print(f"{stage.name}: {error}", file=sys.stderr)
            codes.append(FAILED)
        if codes[-1] > TIME_UP:
            return codes[-1]
    return FAILED if FAILED in codes else max(codes)


def parser() -> argparse.ArgumentParser:
    """Returns the command line's parser."""
    made = argparse.ArgumentParser(
        "python -m launch.measured",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [stage.name for stage in STAGES]
    made.add_argument("--minutes", type=float, default=25.0, metavar="M", help="default: 25")
    made.add_argument("--only", nargs="+", choices=names, metavar="STAGE", help=", ".join(names))
    made.add_argument("--dry-run", action="store_true", help="list the stages, make nothing")
    made.add_argument("--processes", type=int, metavar="N", help="runs at once, if not timed")
    made.add_argument("--retry-failed", action="store_true", help="make failed runs again, too")
    made.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="default: out")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser()
    args = made.parse_args(argv)
    if not 0 < args.minutes < float("inf") or (args.processes or 1) < 1:
        made.error("--minutes must be greater than 0, and --processes at least 1")
    import torch  # here: the command line is answered without it

    args.out = args.out.absolute()
    config.register()
    register()
    gpus = local.visible_gpus() if torch.cuda.is_available() else []
    stages = chosen_stages(args.only, bool(gpus))
    try:
        if args.dry_run:
            for stage in stages:
                found = standings(Sweep.of(overrides_of(stage, args.out)).runs, ask_queue=False)
                print(f"{stage.name}: {counted(found)}")
            return 0
        if not stages:
            return 2
        (args.out / ".measured").mkdir(parents=True, exist_ok=True)
        with held(args.out / ".measured"):  # two calls would disturb what is timed
            return run(stages, args, gpus)
    except (ConfigError, LockedError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
