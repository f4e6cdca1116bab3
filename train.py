"""Runs one configuration or, with -m or a sweep, one after another: python train.py --help."""

from zo.run import signals

signals.end_at_once()  # first: what follows takes seconds to import

import sys  # noqa: E402

import hydra  # noqa: E402

from launch import profile  # noqa: E402
from zo.config import command_line  # noqa: E402
from zo.extras import print_every_character  # noqa: E402


def main() -> int:
    """Makes what the command line asks for; returns the exit status."""
    asked = command_line.check_command_line(sys.argv[1:])
    if asked is None:
        sys.argv[1:] = map(command_line.in_hydra, sys.argv[1:])
        answer = hydra.main(version_base="1.3", config_path="conf", config_name="config")
        answer(lambda cfg: None)()
        return 0
    if asked.estimate:
        from zo.run import fit

        return fit.show((cfg for cfg, _ in asked.cells), asked.gpu)
    if asked.multirun:
        from launch import multirun  # here: --help needs nothing of it

        return multirun.make(asked)
    from zo.run.command import make

    ((run, _),) = asked.cells
    run.tracking.group = run.tracking.group or asked.sweep
    return make(run)


if __name__ == "__main__":
    print_every_character()
    sys.argv[1:] = command_line.readable(sys.argv[1:])
    profile.register()
    signals.leave(main)
