"""The typed configuration of a run: schemas for Hydra, checks, run identity. The only room that sees OmegaConf.

May import the configuration dataclasses of `zo.optim`, `zo.lm` and `zo.tasks`; must not import torch.
"""

from zo.config.checks import ConfigError, Problem
from zo.config.schema import (
    describe,
    from_plain,
    from_yaml,
    identity_settings,
    notes,
    probe_note,
    register,
    to_run_config,
    to_yaml,
)
from zo.config.settings import CheckpointConfig, RunConfig, TrackingConfig

__all__ = [
    "CheckpointConfig",
    "ConfigError",
    "Problem",
    "RunConfig",
    "TrackingConfig",
    "describe",
    "from_plain",
    "from_yaml",
    "identity_settings",
    "notes",
    "probe_note",
    "register",
    "to_run_config",
    "to_yaml",
]
