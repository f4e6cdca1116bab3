"""What a trajectory holds, and the weights that it leads to.

    python -m zo.trajectory info out/bszo-0123456789ab
    python -m zo.trajectory info run.zo
    python -m zo.trajectory replay out/bszo-0123456789ab --to 1500 --out weights/
    python -m zo.trajectory replay bszo.bin --to best --out weights/ --model my/copy

`info` prints what the file holds, also a record that an optimizer of the library wrote (`record="run.zo"`). `replay`
writes the weights after a step, with the tokenizer, as a directory that transformers' `from_pretrained` loads; they
have the run's own bits where noise backend, dtype and processor are the same, and the file knows the hash of its best
step's weights, so that `replay` can tell.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from zo.run.directory import DirectoryError
from zo.run.trajectory import Trajectory, TrajectoryError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    parser = argparse.ArgumentParser(
        "python -m zo.trajectory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="what a trajectory holds")
    replay = commands.add_parser("replay", help="write the weights of a step")
    for command in (info, replay):
        command.add_argument("run", type=Path, help="a run's directory, or a trajectory file")
    replay.add_argument("--to", required=True, metavar="STEP", help="a number, best or last")
    replay.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="made; must be empty"
    )
    replay.add_argument(
        "--model", metavar="PATH", help="where the base model is, if not where it was"
    )
    replay.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    args = parser.parse_args(argv)
    try:
        found = _read(args.run)
    except (TrajectoryError, DirectoryError) as error:
        print(error, file=sys.stderr)
        return 2
    recorded = "groups" in found.header.config
    if args.command == "info":
        for what, value in describe_record(args.run) if recorded else describe(found):
            print(f"{what:14}{value}")
        return 0
    if recorded:
        right = f"zo.replay(model, {str(args.run)!r}) makes its weights"
        print(f"{args.run}: a record of the library; {right}", file=sys.stderr)
        return 2
    from zo.run import export  # here, so that info and --help answer at once

    try:
        run = args.run if args.run.is_dir() else None
        export.replay(found, run, args.to, args.out, model=args.model, device=args.device)
    except export.UNUSABLE as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _read(path: Path) -> Trajectory:
    """Returns what a run's rows or a trajectory file hold.

    Raises:
        DirectoryError, TrajectoryError: If that is no run with steps, or no trajectory.
    """
    if not path.is_dir():
        return Trajectory.read(path)
    from zo.run.rows import trajectory_of  # here, so that --help answers at once

    return trajectory_of(path)


def describe(found: Trajectory) -> list[tuple[str, str]]:
    """Returns what the file holds, as (what, how much)."""
    header, config = found.header, found.header.config
    steps, size = len(found.losses), len(found.encode())
    per_step = f", {(size - len(header.encode())) / steps:.1f} bytes per step" if steps else ""
    optimizer = ", ".join(f"{k} {v}" for k, v in config["optimizer"].items() if k != "name")
    lines = [
        ("run", header.run_id),
        ("size", f"{size:,} bytes{per_step}"),
        ("steps", f"{steps:,} of at most {config['steps']:,}"),
        ("base model", f"{config['model']['name']}, {config['model']['path']}"),
        ("base weights", f"{header.base}, {header.parameters:,} parameters"),
        ("task", config["task"]["name"]),
        (
            "method",
            f"{config['optimizer']['name']}: lr {config['lr']:g}, seed {config['seed']}, {optimizer}",
        ),
        ("precision", ", ".join(f"{k} {v}" for k, v in config["precision"].items() if k != "name")),
        ("noise", header.noise),
        ("written by", ", ".join(f"{k} {v}" for k, v in header.written_by.items())),
    ]
    if (step := found.best_until(steps)) is not None:
        best = found.bests[step]
        accuracies = f"validation {best.val_accuracy:.2%}, test {best.test_accuracy:.2%}"
        lines.append(("best step", f"{step:,}: {accuracies}, weights {best.weights}"))
    if found.torn:
        lines.append(("torn", f"what follows step {steps:,} is not whole"))
    return lines


def describe_record(path: Path) -> list[tuple[str, str]]:
    """Returns what a record of the library holds, as (what, how much)."""
    from zo.record import Record  # here: it imports torch, and info of a run answers at once

    found = Record(path)
    header, steps = found.header, len(found.steps)
    config = dict(header.config)
    name, groups, decays = (config.pop(key) for key in ("name", "groups", "decays"))
    rates = list(dict.fromkeys(tuple(rate.lr for rate in rates) for rates, _ in found.steps))
    shown = [", ".join(f"{lr:g}" for lr in one) for one in (*rates[:1], *rates[1:][-1:])]
    per_step = f", {(found.ends[-1] - found.ends[0]) / steps:.1f} bytes per step" if steps else ""
    lines = [
        ("record", str(path)),
        ("size", f"{found.ends[-1]:,} bytes{per_step}"),
        ("steps", f"{steps:,}"),
        ("base weights", f"{header.base}, {header.parameters:,} parameters"),
        ("tensors", f"{len(groups)} in {len(set(groups))} groups, {sum(decays)} with weight decay"),
        ("method", f"{name}: {', '.join(f'{k} {v}' for k, v in config.items())}"),
        ("lr", " to ".join(shown) or "none yet"),
        ("noise", header.noise),
        ("written by", ", ".join(f"{k} {v}" for k, v in header.written_by.items())),
    ]
    if found.torn:
        lines.append(("torn", f"what follows step {steps:,} is not whole"))
    return lines


if __name__ == "__main__":
    sys.exit(main())
