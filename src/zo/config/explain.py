"""What would be right, in one sentence, from what Hydra, OmegaConf and YAML raise."""

import difflib
import re
from dataclasses import fields, is_dataclass
from importlib.resources import files

import yaml
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from zo.config.settings import RunConfig

WORDS: dict[str, dict[str, str]] = yaml.safe_load((files("zo") / "assets/errors.yaml").read_bytes())


def explain(error: BaseException) -> str:
    """Says in one sentence what would be right, from Hydra's or OmegaConf's exception."""
    while isinstance(cause := error.__cause__, (HydraException, OmegaConfBaseException)):
        error = cause
    inside = ""
    if "raised while composing config" in str(error) and error.__context__ is not None:
        error = error.__context__  # of a file, whose key the sentence has to name
        inside = f"{getattr(error, 'full_key', None)}: "
    said, key = str(error).strip(), str(getattr(error, "key", None))
    if options := re.search(r"Available options in .*\n((?:\t.*\n?)+)", said):
        return f"must be one of {', '.join(options[1].split())}"
    first, schema = said.partition("\n")[0], getattr(error, "object_type", None)
    if is_dataclass(schema) and "not in" in first:
        names = [f.name for f in fields(schema)]
        if key in WORDS["neighbours"] and getattr(error, "full_key", None) == key:
            return f"{inside}no such key; here it is {WORDS['neighbours'][key]}"
        if WORDS["renamed"].get(key) in names:
            return f"{inside}is called {WORDS['renamed'][key]} now"
        if elsewhere := _elsewhere(key, str(getattr(error, "full_key", None))):
            return f"{inside}no such key; {elsewhere}"
        close = difflib.get_close_matches(key.lower(), names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        return f"{inside}no such key; {hint}"
    found = ((re.search(pattern, first), right) for pattern, right in WORDS["expected"].items())
    return inside + next((match.expand(right) for match, right in found if match), first)


def _elsewhere(key: str, full: str) -> str:
    """Returns where a key of a group belongs: to no group, or to the group's other options. Empty: nowhere."""
    from zo.config.schema import option_schemas  # here: the schemas need this module

    group = full.removesuffix(f".{key}")
    if group != full and key in {f.name for f in fields(RunConfig)}:
        return f"here it is {key}, without {group}"
    options = option_schemas().get(group, {})
    have = [name for name, of in options.items() if key in getattr(of, "__dataclass_fields__", {})]
    return f"it is a key of {group}={', '.join(have)}" if have else ""


def with_nearest(group: str, value: str, right: str) -> str:
    """Returns `right`, `must be one of a, b, ...`, behind what was probably meant by an option that a group lacks."""
    options = {of.lower(): of for of in right.removeprefix("must be one of ").split(", ")}
    begun = [of for of in options if value and of.startswith(f"{value.lower()}_")]
    close = begun or difflib.get_close_matches(value.lower(), options, n=1)
    meant = f"did you mean {' or '.join(options[of] for of in close)}? It" if close else ""
    if group == "task" and ("/" in value or "." in value):
        meant = f"data of your own are task=classification task.path={value}, or task=completion; else it"
    if group == "model":
        likely = f"did you mean {options[close[0]]}? A" if close and "/" not in value else "a"
        meant = f"{likely} directory or a model of the hub is model.path={value}; else it"
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
