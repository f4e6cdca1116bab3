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
        names = [f.name for f in fields(object_type)]
        if RENAMED.get(str(key)) in names:
            return f"{inside}is called {RENAMED[str(key)]} now"
        close = difflib.get_close_matches(str(key).lower(), names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        return f"{inside}no such key; {hint}"
    if whole := re.search(r"Value '(-?\d+)\.0' of type 'float'.*Integer", lines[0]):
        return f"{inside}must be a whole number, written {whole[1]}"
    right = next((right for said, right in EXPECTED.items() if said in lines[0]), lines[0])
    return inside + right


def by_path(group: str, value: str) -> str:
    """Returns what may have been meant, to follow the options of a group that has no such value."""
    if group == "model":
        return f"; a directory or a model of the hub is model.path={value}"
    if group == "task" and ("/" in value or "." in value):
        return f"; data of your own are task=classification task.path={value}, or task=completion"
    if group == "sweep" and (stage := re.fullmatch(r"(\w+?)_(tune|tune_best)", value)):
        return f"; a stage is chosen by stage=, as sweep={stage[1]} stage={stage[2]}"
    return ""


def explain_yaml(error: yaml.YAMLError) -> str:
    """Says in one sentence where a text is not YAML, and why."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"line {mark.line + 1} " if mark is not None else ""
    if "\\t" in str(problem):
        return f"{where}has a tab; indent with spaces"
    return f"{where}is not YAML: {problem or str(error).splitlines()[0]}"
