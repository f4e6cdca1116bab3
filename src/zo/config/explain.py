"""What would be right, in one sentence, from what Hydra and OmegaConf raise."""

import difflib
import re
from dataclasses import fields, is_dataclass

import yaml
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

EXPECTED = {
    "Integer": "must be a whole number",
    "Float": "must be a number, as 1e-6",
    "is not a valid bool": "must be true or false",
    "not Optional": "must not be null",
    "Unexpected type for root": "is null; give its keys together, as task.data_files={train:a.csv}",
    "is not in struct": "no such key",
    "is not a ListConfig": "must be a list, as [a,b]",
    "to Dict[": "must be a mapping, as {a:1}",
    "to string": "must be a text",
    "is not a subclass of": "is a group of keys; give one of them",
}
"""OmegaConf's words -> what would be right."""

RENAMED = {
    "lines": "arms",
    "others": "references",
    "smallest": "equivalence_margin",
    "recorded": "stored_runs",
    "settings": "stages",
}
"""Earlier keys of `hydra.sweeper`."""


NEIGHBOURS = {
    "learning_rate": "lr",
    **dict.fromkeys(("epochs", "num_train_epochs"), "steps = epochs · examples / batch_size"),
    **dict.fromkeys(("output_dir", "save_dir"), "out"),
    **dict.fromkeys(("per_device_train_batch_size", "train_batch_size"), "batch_size"),
    "per_device_eval_batch_size": "eval_tokens",
    **dict.fromkeys(("wandb", "report_to"), "tracking.mode, as tracking.mode=disabled"),
    **dict.fromkeys(("model_name_or_path", "model_name"), "model.path"),
    **dict.fromkeys(("dataset", "dataset_name"), "task, or task.path for data of your own"),
    **dict.fromkeys(("max_length", "max_seq_length"), "task.max_length"),
    **dict.fromkeys(("fp16", "bf16", "dtype", "torch_dtype"), "precision, as precision=bf16"),
    **dict.fromkeys(("lora", "peft"), "adapter, as adapter=lora"),
    **dict.fromkeys(("eps", "zo_eps"), "optimizer.eps"),
    "weight_decay": "optimizer.weight_decay",
    "eval_steps": "eval_every",
}
"""Key of other trainers -> ours."""


def explain(error: BaseException) -> str:
    """Says in one sentence what would be right, from Hydra's or OmegaConf's exception."""
    inside = ""
    while isinstance(cause := error.__cause__, (HydraException, OmegaConfBaseException)):
        error = cause
    if "raised while composing config" in str(error) and error.__context__ is not None:
        error = error.__context__  # of a file, whose key the sentence has to name
        inside = f"{getattr(error, 'full_key', None)}: "
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Available options") for line in lines):
        start = next(i for i, line in enumerate(lines) if line.startswith("Available options"))
        options = [
            line
            for line in lines[start + 1 :]
            if not line.startswith(("Config search", "provider="))
        ]
        return f"must be one of {', '.join(options)}"
    object_type = getattr(error, "object_type", None)
    key = getattr(error, "key", None)
    if is_dataclass(object_type) and "not in" in lines[0]:
        if str(key) in NEIGHBOURS and getattr(error, "full_key", None) == key:
            return f"{inside}no such key; here it is {NEIGHBOURS[str(key)]}"
        names = [f.name for f in fields(object_type)]
        if RENAMED.get(str(key)) in names:
            return f"{inside}is called {RENAMED[str(key)]} now"
        close = difflib.get_close_matches(str(key).lower(), names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        return f"{inside}no such key; {hint}"
    if whole := re.search(r"Value '(-?\d+)\.0' of type 'float'.*Integer", lines[0]):
        return f"{inside}must be a whole number, written {whole[1]}"
    if unit := re.search(r"Value '([\d.]+) ?[A-Za-z]+'.* to (Float|Integer)", lines[0]):
        return f"{inside}must be a number without its unit, as {unit[1]}"
    right = next((right for said, right in EXPECTED.items() if said in lines[0]), lines[0])
    return inside + right


def with_nearest(group: str, value: str, right: str) -> str:
    """Returns what would be right of an option that a group does not have: first what was probably meant.

    Args:
        group: The group's name.
        value: As typed.
        right: `must be one of a, b, ...`.
    """
    options = {of.lower(): of for of in right.removeprefix("must be one of ").split(", ")}
    close = difflib.get_close_matches(value.lower(), options, n=1)
    meant = f"did you mean {options[close[0]]}? It" if close else ""
    if group == "task" and ("/" in value or "." in value):
        meant = f"data of your own are task=classification task.path={value}, or task=completion; else it"
    if group == "model" and ("/" in value or not close):
        meant = f"a directory or a model of the hub is model.path={value}; else it"
    if group == "sweep" and (stage := re.fullmatch(r"(\w+?)_(tune|tune_best)", value)):
        meant = f"a stage is chosen by stage=, as sweep={stage[1]} stage={stage[2]}; else it"
    return f"{meant} {right}".lstrip()


def explain_yaml(error: yaml.YAMLError) -> str:
    """Says in one sentence where a text is not YAML, and why."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"line {mark.line + 1} " if mark is not None else ""
    if "\\t" in str(problem):
        return f"{where}has a tab; indent with spaces"
    return f"{where}is not YAML: {problem or str(error).splitlines()[0]}"
