"""Runs one configuration or, with -m or a sweep, one after another: python train.py --help."""

import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from zo import config
from zo.config import command_line

config.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    """Runs one composed configuration."""
    from zo.run import runner  # here, so that --help and a refused configuration answer sooner

    one = config.to_run_config(cfg)
    if one.tracking.group is None:
        one.tracking.group = HydraConfig.get().runtime.choices.get("sweep") or "none"
    try:
        runner.run(one)
    except runner.LockedError as error:
        print(error, file=sys.stderr)
        raise SystemExit(runner.LOCKED) from None
    except runner.UNUSABLE as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    command_line.check_command_line(sys.argv[1:])
    main()
