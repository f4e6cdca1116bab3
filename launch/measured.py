"""Makes the runs that this suite measures, most valuable first, within a time. The same command goes on.

    make measured                                      25 minutes, then tables, figures and the page
    python -m launch.measured --minutes 120
    python -m launch.measured --only table4 table4_fast
    python -m launch.measured --dry-run                list the stages and what is left of each

Every stage is a `python train.py -m ... hydra/launcher=local`. With a GPU: table4, table4_fast and table4_factors, one
run at a time since they are timed, then the study of SmolLM2-135M, several runs at once on each GPU. Without one: the
small study, a run per core. Nothing is asked of a hub. Runs that the time ends save and are interrupted.

Exit status: 0 all that this machine can make is there; 1 runs failed; 2 it cannot begin; 3 the time was up; 130 or 143
it was told to stop, and the runs have saved.
"""

import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch import ROOT, local, parser
from launch.profile import register
from launch.sweep import Sweep, counted, standings
from zo.config import ConfigError
from zo.extras import print_every_character
from zo.run.store.lock import LockedError, held

TRAIN = ROOT / "train.py"
GIB_PER_RUN = 3.0
"""GPU memory of a run of the study, with its CUDA context."""

FAILED, TIME_UP = 1, 3

SAVING_S = 20.0
"""Seconds before the end at which runs are told to save; those that have not saved at the end are killed."""


@dataclass(frozen=True)
class Stage:
    """A sweep, or a part of one."""

    name: str  # For --only and the summary
    overrides: tuple[str, ...]  # As for `train.py -m`
    gpu: bool = True  # Whether it needs a GPU
    alone: bool = False  # Whether one run at a time has the machine, since it is timed


PARTS = ("5a", "5b", "5c", "eps")
STAGES = (
    *(Stage(n, (f"sweep={n}",), alone=True) for n in ("table4", "table4_fast", "table4_factors")),
    Stage("study_smollm2", ("sweep=study_smollm2", "seed=0")),
    Stage("study_smollm2_seeds", ("sweep=study_smollm2", "seed=1,2")),
    *(Stage(n, (f"sweep={n}", "seed=0,1,2")) for n in (f"study_smollm2_{p}" for p in PARTS)),
    Stage("study_tiny", ("sweep=study_tiny",), gpu=False),
    *(
        Stage(f"study_tiny_{p}", (f"sweep=study_tiny_{p}",), gpu=False)
        for p in ("roundings", *PARTS)
    ),
)


def slots(stage: Stage, gpus: Sequence[str], processes: int | None) -> int:
    """Returns how many runs of a stage share a GPU, or the processor: a core each, and as many as the memory holds."""
    if stage.alone:
        return 1
    cores = max(1, len(os.sched_getaffinity(0)) // max(1, len(gpus)))
    fit = int(_gpu_gib() // GIB_PER_RUN) if stage.gpu else cores
    return processes or max(1, min(cores, fit))


def _gpu_gib() -> float:
    """Returns the memory of the GPU that has least; 0 if the driver does not say."""
    return min(map(float, local.of_gpus("memory.total")), default=0.0) / 1024


def overrides_of(stage: Stage, out: Path, processes: int = 1) -> list[str]:
    """Returns a stage's overrides; a stage for a GPU never runs on the processor by mistake."""
    device = ["device=cuda"] if stage.gpu else []
    launcher = ["hydra/launcher=local", f"hydra.launcher.processes={processes}"]
    return [*stage.overrides, *device, f"out={out}", *launcher]


def make(stage: Stage, args: Namespace, gpus: Sequence[str], deadline: float) -> int:
    """Makes what is missing of a stage, and what failed, until a deadline by `time.monotonic()`.

    Returns:
        The exit status of `train.py`; 3 if the time was up.
    """
    print(f"{time.strftime('%H:%M:%S')}  {stage.name}", flush=True)
    overrides = overrides_of(stage, args.out, slots(stage, gpus, args.processes))
    visible = {"CUDA_VISIBLE_DEVICES": gpus[0]} if stage.alone and gpus else {}
    command, environment = [sys.executable, str(TRAIN), "-m", *overrides], {**os.environ, **visible}
    child = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        return child.wait(deadline - SAVING_S - time.monotonic())
    except subprocess.TimeoutExpired:
        return TIME_UP
    finally:
        _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Lets the runs of a stage that goes on save; kills those that do not."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(SAVING_S)
        except subprocess.TimeoutExpired:
            runs = (
                Path(f"/proc/{child.pid}/task/{child.pid}/children")
                .read_text(encoding="utf-8")
                .split()
            )
            child.kill()
            for run in runs:
                os.kill(int(run), signal.SIGKILL)


def run(stages: Sequence[Stage], args: Namespace, gpus: Sequence[str]) -> int:
    """Makes stages one after another within the time; returns the exit status."""
    deadline = time.monotonic() + 60 * args.minutes
    codes = [0]
    for stage in stages:
        if time.monotonic() >= deadline - 2 * SAVING_S:
            print(f"no time left for {stage.name} and what comes after it")
            codes.append(TIME_UP)
            break
        codes.append(make(stage, args, gpus, deadline))
        if codes[-1] > TIME_UP:
            return codes[-1]
    return FAILED if {FAILED, 2} & set(codes) else max(codes)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made, names = parser("measured", __doc__), [stage.name for stage in STAGES]
    made.add_argument("--minutes", type=float, default=25.0, metavar="M", help="default: 25")
    made.add_argument("--only", nargs="+", choices=names, metavar="STAGE", help=", ".join(names))
    made.add_argument("--dry-run", action="store_true", help="list the stages, make nothing")
    made.add_argument("--processes", type=int, metavar="N", help="runs at once, if not timed")
    made.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="default: out")
    args = made.parse_args(argv)
    if not 0 < args.minutes < float("inf") or (args.processes or 1) < 1:
        made.error("--minutes must be greater than 0, and --processes at least 1")
    import torch  # here: the command line is answered without it

    args.out = args.out.absolute()
    register()
    gpus = local.visible_gpus() if torch.cuda.is_available() else []
    chosen = [s for s in STAGES if (s.name in args.only if args.only else s.gpu == bool(gpus))]
    if lost := [s.name for s in chosen if s.gpu and not gpus]:
        print(f"no GPU that PyTorch can use here for {', '.join(lost)}", file=sys.stderr)
        return 2
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if args.dry_run:
            for stage in chosen:
                found = standings(Sweep.of(overrides_of(stage, args.out)).runs, ask_queue=False)
                print(f"{stage.name}: {counted(found)}")
            return 0
        (args.out / ".measured").mkdir(parents=True, exist_ok=True)
        with held(args.out / ".measured"):  # two calls would disturb what is timed
            return run(chosen, args, gpus)
    except (ConfigError, LockedError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    print_every_character()
    sys.exit(main())
