"""The settings of a run, typed. Those of a group stand in the room that they are for."""

import os
import re
from dataclasses import dataclass, field
from typing import Annotated, Any

from omegaconf import MISSING

from zo.config.precision import PrecisionConfig
from zo.distributed.config import DistributedConfig
from zo.lm.config import ModelConfig
from zo.optim.config import AutoCount, Count, Range, Settings, at_least, one_of, or_null, within
from zo.tasks.config import TaskConfig
from zo.tasks.objective import ObjectiveConfig

DEVICES = Range(
    lambda x: re.fullmatch(r"auto|cpu|cuda(:\d+)?", x) is not None,
    "must be auto, cpu, cuda or cuda:N",
)


@dataclass
class TrackingConfig(Settings):
    """Where W&B logs go. Not part of a run's identity.

    Attributes:
        mode: `auto` is online with a W&B key and a connection, else offline; or `online`, `offline`, `disabled`.
        project: W&B project; WANDB_PROJECT takes the place of the default.
        entity: W&B user or team; None is the key's default.
        group: W&B group; None is the sweep's name, or what was typed of a multirun.
        cell: Set by a sweep: the run's line of the manifest, as JSON, which tables read.
    """

    mode: Annotated[str, one_of("auto", "online", "offline", "disabled")] = "auto"
    project: str = "zo"
    entity: str | None = None
    group: str | None = None
    cell: str | None = None


@dataclass
class CheckpointConfig(Settings):
    """When whole weights are written, beside the trajectory. Not part of a run's identity.

    Attributes:
        full_every: Steps between checkpoints, of which the newest two stay until the run has ended; None writes none,
            and an interrupted run replays its trajectory from step 0.
        keep_best: The best step's weights stay, too, also after the end: `zo.run.results.export` need not replay then.
            None: for Adam, whose steps cannot be replayed and whose own state is larger.
    """

    full_every: AutoCount = 1000
    keep_best: bool | None = None

    def keeps_best(self, optimizer: Any) -> bool:
        """Returns whether a run of a method keeps its best step's weights."""
        return bool(optimizer.keeps_best if self.keep_best is None else self.keep_best)


@dataclass
class RunConfig(Settings):
    """One run, complete.

    Attributes:
        model: See `zo.lm.config.ModelConfig`.
        task: See `zo.tasks.config.TaskConfig`.
        optimizer: One of the registered methods' configurations.
        precision: See `zo.config.precision.PrecisionConfig`.
        adapter: One of the settings in `zo.lm.adapters.config`: what is trained of the model.
        seed: Of the directions and the order of mini-batches, ≥ 0.
        objective: See `zo.tasks.objective.ObjectiveConfig`.
        lr: Learning rate > 0; None takes the adapter's or the model's grid, by `lr_index`.
        lr_index: Position in the grid's list for `optimizer.name`, from 0; None takes the middle.
        steps: Optimizer steps at most; 0 only evaluates.
        batch_size: Training examples per step.
        eval_every: Steps between evaluations.
        eval_growth: Factor of at least 1.01 between the steps of successive evaluations, from `eval_every` on; None
            evaluates at its multiples.
        budget: What `steps` and `eval_every` count: `steps`, or `forward_passes`, of which a method's step makes
            several, a backward pass counting as two. A checked run has them in steps.
        patience: Stop after this many evaluations without a better validation accuracy; None never stops early.
        eval_tokens: Tokens, padding included, of one evaluation batch. Not part of a run's identity.
        out: Directory of all runs. Not part of a run's identity.
        resume: False starts a run anew even if it is finished. Not part of a run's identity.
        device: `auto`, `cpu`, `cuda` or `cuda:N`. Not part of a run's identity.
        threads: CPU threads of torch; None leaves torch's choice. Not part of a run's identity.
        checkpoint: When whole weights are written. Not part of a run's identity.
        tracking: W&B. Not part of a run's identity.
        distributed: See `zo.distributed.config.DistributedConfig`. `shards` and `tensor` are part of a run's identity.
    """

    model: ModelConfig = MISSING
    task: TaskConfig = MISSING
    optimizer: Any = MISSING
    precision: PrecisionConfig = MISSING
    adapter: Any = MISSING
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    seed: Annotated[int, within(0, 2**63 - 1)] = 0
    lr: float | None = None
    lr_index: int | None = None
    steps: Annotated[int, within(0, 2**31 - 1)] = 20_000
    batch_size: Count = 16
    eval_every: Count = 500
    eval_growth: Annotated[float | None, or_null(at_least(1.01))] = None
    budget: Annotated[str, one_of("steps", "forward_passes")] = "steps"
    patience: AutoCount = 8
    eval_tokens: Count = 16_384
    out: Annotated[str, Range(lambda x: bool(x.strip()), "must be a directory, as out=out")] = "out"
    resume: bool = True
    device: Annotated[str, DEVICES] = "auto"
    threads: Annotated[int | None, or_null(within(1, 1024))] = None
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


def chosen_mode(mode: str) -> str:
    """Returns where a run is to be logged: WANDB_MODE instead of `auto`, where that names a mode of W&B's."""
    given = os.environ.get("WANDB_MODE", "").strip().lower()
    known = {"online": "online", "offline": "offline", "disabled": "disabled"}
    known |= {"run": "online", "dryrun": "offline"}  # W&B's earlier names
    return known.get(given, "auto") if mode == "auto" else mode
