"""Fills results/ with what this suite measures, in order of worth, within a time; called again, it goes on.

    make measured                                      25 minutes
    python -m launch.measured --minutes 120
    python -m launch.measured --only table4 table4_fast
    python -m launch.measured --dry-run                what there is to make, and how long it takes where that is known

With a GPU: table4, table4_fast and table4_factors, one run at a time since they are timed, then the study of
SmolLM2-135M, several runs at once on each GPU. Without one: the small study, a run per core. Nothing is asked of a
hub. When the time is nearly up the runs are told to save; tables and figures of what there is come last, also after
Ctrl-C. A stage is begun only if a minute is left for it, a tenth of the time where that is less.

Exit status: 0 all that this machine can make is there; 1 runs failed; 2 it cannot begin; 3 the time was up and
something is left; 130 or 143 it was told to stop, and the runs have saved.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from launch.measured.stages import STAGES, for_machine, lacking, lacking_essential

ROOT = Path(__file__).resolve().parents[2]


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be greater than 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def parser() -> argparse.ArgumentParser:
    """Returns the command line's parser."""
    made = argparse.ArgumentParser(
        "python -m launch.measured",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [stage.name for stage in STAGES]
    made.add_argument("--minutes", type=_positive, default=25.0, metavar="M", help="default: 25")
    made.add_argument(
        "--only",
        nargs="+",
        choices=names,
        metavar="STAGE",
        help=f"these alone: {', '.join(names)}",
    )
    made.add_argument("--dry-run", action="store_true", help="count and estimate, make nothing")
    made.add_argument(
        "--processes",
        type=_count,
        metavar="N",
        help="runs at once on each GPU, or on the processor, where they are not timed (default: a core each, "
        "and as many as the GPU's memory holds)",
    )
    made.add_argument("--retry-failed", action="store_true", help="make failed runs again, too")
    made.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="default: out")
    made.add_argument(
        "--results",
        type=Path,
        default=Path("results/local"),
        metavar="DIR",
        help="default: results/local",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    arguments = parser().parse_args(argv)
    if problem := lacking_essential():
        print(problem, file=sys.stderr)
        return 2
    _use_this_checkout()
    from launch.measured import analyses  # here: torch, Hydra and the suite come with these
    from launch.measured.driver import Driver, Options
    from launch.measured.machine import Machine

    machine = Machine.this()
    chosen = [s for s in STAGES if arguments.only is None or s.name in arguments.only]
    mine, others = for_machine(chosen, bool(machine.gpus))
    if others:
        print(f"no GPU that PyTorch can use here: {', '.join(s.name for s in others)} need one")
    ready = []
    for stage in mine:
        if problem := lacking(stage):
            print(f"{stage.name} is left out: {problem}")
        else:
            ready.append(stage)
    if not ready:
        print("nothing of what was asked for can be made on this machine", file=sys.stderr)
        return 2
    options = Options(
        minutes=arguments.minutes,
        processes=arguments.processes,
        retry_failed=arguments.retry_failed,
        out=arguments.out.absolute(),
        results=arguments.results.absolute(),
    )
    driver = Driver(ready, machine, options)
    if arguments.dry_run:
        return driver.predict()
    with analyses.composing():
        return driver.run()


def _use_this_checkout() -> None:
    """Makes this process and its children import the suite that lies beside this file, installed or not."""
    places = [str(ROOT / "src"), str(ROOT)]
    for place in reversed(places):
        if place in sys.path:
            sys.path.remove(place)
        sys.path.insert(0, place)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [place for place in before if place and place not in places]
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *kept])


if __name__ == "__main__":
    sys.exit(main())
