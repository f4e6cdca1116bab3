"""Runs one configuration or, with -m or a sweep, one after another: python train.py --help."""

from zo.run import signals

signals.end_at_once()  # first: what follows takes seconds to import

import sys  # noqa: E402

import hydra  # noqa: E402
from hydra.core.hydra_config import HydraConfig  # noqa: E402
from omegaconf import DictConfig  # noqa: E402

from zo import config  # noqa: E402
from zo.config import command_line  # noqa: E402

config.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    """Runs one composed configuration."""
    from zo.run.command import make  # here: --help needs nothing of it

    one = config.to_run_config(cfg)
    one.tracking.group = one.tracking.group or HydraConfig.get().runtime.choices.get("sweep")
    signals.leave(make(one))


if __name__ == "__main__":
    sys.argv[1:] = command_line.readable(sys.argv[1:])
    command_line.check_command_line(sys.argv[1:])
    main()
