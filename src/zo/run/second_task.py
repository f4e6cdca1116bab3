"""A task that evaluations score beside the run's own: what the model learnt before, and should not lose."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zo.config import RunConfig
from zo.distributed.processes import Processes
from zo.lm.load import Loaded
from zo.lm.objectives import Scorer, scorers
from zo.run.store.inputs import digest_examples
from zo.tasks import Encoded, TaskConfig, TaskError, load_splits, tokenize
from zo.tasks.data import complete


@dataclass
class Also:
    """The other task.

    Attributes:
        name: Of the task.
        examples: Its validation split.
        evaluator: Scores them with the model that is trained.
        digest: Of the examples.
    """

    name: str
    examples: list[Encoded]
    evaluator: Scorer
    digest: str

    @classmethod
    def open(
        cls, given: Mapping[str, Any], loaded: Loaded, cfg: RunConfig, processes: Processes
    ) -> "Also":
        """Loads its data.

        Raises:
            TaskError: If they cannot be had as configured, or do not fit the model.
        """
        try:
            task, _ = complete(TaskConfig(**given))
            validation = load_splits(task).validation
            limits = replace(cfg.objective, name="task", function=None, functions={})
            how = limits, cfg.precision.loss, False
            _, evaluator = scorers(loaded, task, *how, processes)
            examples = tokenize(task, loaded.tokenizer, validation, cfg.model.kind)
            evaluator.check(examples)
        except TaskError as error:
            raise TaskError(f"task.also: {error}") from error
        return cls(task.name, examples, evaluator, digest_examples(validation))
