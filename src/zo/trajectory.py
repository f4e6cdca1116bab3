"""What a trajectory holds, and the weights that it leads to.

    zo trajectory info out/bszo-0123456789ab
    zo trajectory info run.zo
    zo trajectory replay out/bszo-0123456789ab --to 1500 --out weights/
    zo trajectory replay bszo.bin --to best --out weights/ --model my/copy
    zo trajectory replay mine.bin --to best --out weights/ --method my_method.py:MyMethod

`info` prints what the file holds, also a record that an optimizer of the library wrote (`record="run.zo"`). `replay`
writes the weights after a step, with the tokenizer, as a directory that transformers' `from_pretrained` loads; they
have the run's own bits where noise backend, dtype and processor are the same, and the file knows the hash of its best
step's weights, so that `replay` can tell.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zo.extras import Trust, add_model, alias, missing, parser
from zo.record.trajectory import Trajectory, TrajectoryError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser("trajectory", __doc__)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="what a trajectory holds")
    replay = commands.add_parser("replay", help="write the weights of a step")
    for command in (info, replay):
        command.add_argument("run", type=Path, help="a run's directory, or a trajectory file")
        command.add_argument("--trust", action=Trust)
    replay.add_argument("--to", required=True, metavar="STEP", help="a number, best or last")
    words = "made; must be empty"
    replay.add_argument("--out", required=True, type=Path, metavar="DIR", help=words)
    words = "the method's file, which is run, if it is not zo's"
    replay.add_argument("--method", metavar="FILE:CLASS", help=words)
    add_model(replay)
    args = made.parse_args(argv)
    address, given = getattr(args, "method", None), None
    try:
        if address is not None:
            from zo.config import method_code  # here: a record needs none of the suite's libraries

            given = method_code.option(address)
        found = _read(args.run)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        return missing(f"zo trajectory {args.command} {args.run}", error)
    recorded = found.header.groups > 0
    if args.command == "info":
        for what, value in describe(found):
            print(f"{what:14}{value}")
        return 0
    if recorded:
        print(f"{args.run}: {how_to_replay(found, address)}", file=sys.stderr)
        return 2
    try:
        from zo.run.results import export  # here, so that info and --help answer at once
    except ModuleNotFoundError as error:
        return missing("zo trajectory replay", error)

    try:
        run = args.run if args.run.is_dir() else None
        check_method(found, given)
        export.replay(found, run, args.to, args.out, model=args.model, device=args.device)
    except export.UNUSABLE as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _read(path: Path) -> Trajectory:
    """Returns what a run's rows or a trajectory file hold.

    Raises:
        TrajectoryError: If that is no run with steps, or no trajectory.
    """
    if not path.is_dir():
        return Trajectory.read(path)
    from zo.run.store.directory import (
        DirectoryError,  # here: a record needs none of the suite's libraries
    )
    from zo.run.store.rows import trajectory_of

    try:
        return trajectory_of(path)
    except DirectoryError as error:
        raise TrajectoryError(str(error)) from None


def check_method(found: Trajectory, given: str | None) -> None:
    """Checks that a run's trajectory was made by the method that was given, or by one of zo's.

    Raises:
        TrajectoryError: If not.
    """
    from zo.optim import OPTIMIZERS

    name = found.header.config["optimizer"]["name"]
    if given not in (None, name):
        raise TrajectoryError(f"{found.path}: was made by {name}, not by {given}")
    if name not in OPTIMIZERS:
        right = f"--method my_method.py:{name} names its file"
        raise TrajectoryError(f"{found.path}: made by {name}, which is no method of zo; {right}")


def how_to_replay(found: Trajectory, address: str | None) -> str:
    """Returns how a record of the library is replayed, which does not say what model it began with."""
    from zo.optim import OPTIMIZERS

    sizes = [found.header.config["groups"].count(i) for i in range(found.header.groups)]
    first, what = "model", "model is the one that was trained"
    if len(sizes) > 1:
        tensors = " and ".join(map(str, sizes))
        first, what = "groups", f"groups are the optimizer's, of {tensors} tensors in this order"
    call = f"zo.replay({first}, {str(found.path)!r}"
    if (name := found.header.config["name"]) not in OPTIMIZERS:
        call += f", method={address or f'my_method.py:{name}'!r}"
    why = "a record of the library, which does not name its model"
    return f"{why}; in Python `{call})` makes its weights, where {what}, as before the first step"


def describe(found: Trajectory) -> list[tuple[str, str]]:
    """Returns what a run's trajectory or a record of the library holds, as (what, how much)."""
    header, steps = found.header, len(found.losses)
    size = found.ends[-1] if found.ends else len(found.encode())
    per_step = f", {(size - len(header.encode())) / steps:.1f} bytes per step" if steps else ""
    lines = [
        ("size", f"{size:,} bytes{per_step}"),
        ("base weights", f"{header.base}, {header.parameters:,} parameters"),
        *(_of_record(found) if header.groups else _of_run(found)),
        ("noise", header.noise),
        ("written by", _listed(header.written_by)),
    ]
    if (step := found.best_until(steps)) is not None:
        best = found.bests[step]
        accuracies = f"validation {best.val_accuracy:.2%}, test {best.test_accuracy:.2%}"
        lines.append(("best step", f"{step:,}: {accuracies}, weights {best.weights}"))
    if found.torn:
        lines.append(("torn", f"what follows step {steps:,} is not whole"))
    return lines


def _of_run(found: Trajectory) -> list[tuple[str, str]]:
    config, steps = found.header.config, len(found.losses)
    optimizer = {k: v for k, v in config["optimizer"].items() if k != "name"}
    method = f"lr {config['lr']:g}, seed {config['seed']}, {_listed(optimizer)}"
    return [
        ("run", found.header.run_id),
        ("steps", f"{steps:,} of at most {config['steps']:,}"),
        ("base model", f"{config['model']['name']}, {config['model']['path']}"),
        ("task", config["task"]["name"]),
        ("method", f"{config['optimizer']['name']}: {method}"),
        ("precision", _listed({k: v for k, v in config["precision"].items() if k != "name"})),
    ]


def _of_record(found: Trajectory) -> list[tuple[str, str]]:
    config = dict(found.header.config)
    name, groups, decays = (config.pop(key) for key in ("name", "groups", "decays"))
    rates = list(dict.fromkeys(of_step[::2] for of_step in found.rates))
    shown = [", ".join(f"{lr:g}" for lr in one) for one in (*rates[:1], *rates[1:][-1:])]
    return [
        ("record", str(found.path)),
        ("steps", f"{len(found.losses):,}"),
        ("tensors", f"{len(groups)} in {len(set(groups))} groups, {sum(decays)} with weight decay"),
        ("method", f"{name}: {_listed(config)}"),
        ("lr", " to ".join(shown) or "none yet"),
    ]


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


if __name__ == "__main__":
    sys.exit(alias("trajectory", main))
