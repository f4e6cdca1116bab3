"""Runs one configuration or, with -m or a sweep, one after another: python train.py --help."""

import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from zo import cells, config

config.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    """Runs one composed configuration."""
    from zo import run  # here, so that --help and a refused configuration answer sooner

    one = config.to_run_config(cfg)
    if one.tracking.group is None:
        one.tracking.group = HydraConfig.get().runtime.choices.get("sweep") or "none"
    try:
        run.run(one)
    except run.LockedError as error:
        print(error, file=sys.stderr)
        raise SystemExit(run.LOCKED) from None
    except run.UNUSABLE as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    cells.check_command_line(sys.argv[1:])
    main()
