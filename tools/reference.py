"""Writes the reference of keys, commands, methods and classes into docs/reference/: python -m tools.reference.

A page keeps what stands above its mark. A test compares the rest with the code.
"""

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

import zo
from zo.__main__ import COMMANDS
from zo.config.precision import PrecisionConfig
from zo.config.presets import CONFIG_DIR
from zo.config.schema import option_schemas
from zo.config.settings import CheckpointConfig, RunConfig, TrackingConfig
from zo.distributed.config import DistributedConfig
from zo.integrations.transformers import ZOTrainer
from zo.lm.adapters.config import AdapterConfig
from zo.lm.config import ModelConfig
from zo.optim import OPTIMIZERS
from zo.optim.config import MethodConfig, ZerothOrderConfig, ranges_of
from zo.tasks.config import TaskConfig
from zo.tasks.objective import ObjectiveConfig

PAGES = Path(__file__).parents[1] / "docs" / "reference"
MARK = "<!-- What follows is written by python -m tools.reference. -->\n"
GROUPS: dict[str, type] = {
    "model": ModelConfig,
    "task": TaskConfig,
    "objective": ObjectiveConfig,
    "precision": PrecisionConfig,
    "checkpoint": CheckpointConfig,
    "tracking": TrackingConfig,
    "distributed": DistributedConfig,
}


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a Markdown table."""
    lines = [[*columns], ["---"] * len([*columns]), *map(list, rows)]
    escaped = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped) + "\n"


def entries(text: str) -> dict[str, str]:
    """Returns what a section of a docstring says, by name."""
    parts = (entry.strip().partition(": ") for entry in re.split(r"\n(?=\S)", text.strip()))
    return {name: plain(said) for name, _, said in parts}


def plain(said: str) -> str:
    """Returns a docstring's words in one line, as the command line has them."""
    said = " ".join(said.split()).replace("``", "`")
    return re.sub(r"^[a-z](?=[a-z])", lambda first: first[0].upper(), said)


def sections(of: Any) -> dict[str, str]:
    """Returns a docstring's text by the names of its sections; what stands above them has none."""
    parts = re.split(
        r"^(Args|Attributes|Returns|Raises|Example):\n", inspect.getdoc(of) or "", flags=re.M
    )
    named = zip(["", *parts[1::2]], [parts[0], *parts[2::2]], strict=True)
    return {name: inspect.cleandoc(text) if name else text.strip() for name, text in named}


def attributes(kind: type) -> dict[str, str]:
    """Returns the meaning of each field of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if is_dataclass(base):
            found |= entries(sections(base).get("Attributes", ""))
    return found


def shown(value: Any) -> str:
    """Returns a default as it is typed."""
    if isinstance(value, str) and "\n" in value:
        return f"`{json.dumps(value)}`"
    if value == "???":
        return "from its file"
    return f"`{yaml.safe_dump(value, default_flow_style=True).removesuffix(chr(10)).removesuffix('...').strip()}`"


def values(kind: type, of: Field[Any]) -> str:
    """Returns the range or the type of a field."""
    if of.name in (ranges := ranges_of(kind)):
        return ranges[of.name].right.removeprefix("must be ")
    return kind_of(get_type_hints(kind)[of.name])


def kind_of(hint: Any) -> str:
    """Returns a type in words."""
    words = {
        int: "whole number",
        float: "number",
        bool: "true or false",
        str: "text",
        type(None): "null",
    }
    if hint in words:
        return words[hint]
    if get_origin(hint) in (list, tuple):
        return "list"
    if get_origin(hint) is dict or hint is Any:
        return "mapping" if hint is not Any else ""
    return " or ".join(filter(None, map(kind_of, get_args(hint))))


def keys(kind: type, prefix: str, given: Mapping[str, Any], left_out: Iterable[str] = ()) -> str:
    """Returns the table of a group's keys; `given` are defaults of its file."""
    said = attributes(kind)
    rows = []
    for of in fields(kind):
        if of.name in ("name", *left_out) or of.name not in said:
            continue
        default = of.default_factory() if of.default_factory is not MISSING else of.default
        default = given.get(of.name, default)
        meaning = re.sub(r"\bNone\b", "null", said[of.name])
        rows.append((f"`{prefix}{of.name}`", shown(default), values(kind, of), meaning))
    return table(("key", "default", "values", "meaning"), rows) if rows else ""


def file_of(group: str, name: str) -> Mapping[str, Any]:
    """Returns the keys of an option's file."""
    path = CONFIG_DIR / group / f"{name}.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def configuration() -> Iterator[str]:
    """Yields the keys of a run."""
    top = yaml.safe_load((CONFIG_DIR / "config.yaml").read_text(encoding="utf-8"))
    groups = [of.name for of in fields(RunConfig) if of.name in (*GROUPS, "optimizer", "adapter")]
    yield "## A run\n"
    yield keys(RunConfig, "", top, groups)
    for group, kind in GROUPS.items():
        yield f"## {group}\n"
        yield keys(kind, f"{group}.", top.get(group) or {})
    yield "## optimizer\n"
    yield "The keys of a method are on the page of [methods](methods.md).\n"
    yield "## adapter\n"
    yield keys(AdapterConfig, "adapter.", {})
    common = [of.name for of in fields(AdapterConfig)]
    for name, kind in option_schemas()["adapter"].items():
        if own := keys(kind, "adapter.", file_of("adapter", name), common):
            yield f"### adapter={name}\n"
            yield own


def commands() -> Iterator[str]:
    """Yields what each command does."""
    rows = ((f"`{f'zo {name} {of.arguments}'.strip()}`", of.help) for name, of in COMMANDS.items())
    yield table(("command", "what it makes or shows"), rows)


def passes(config: MethodConfig) -> str:
    """Returns the forward passes of a step as a formula of a setting, and their number by default."""
    default = config.forwards_per_step
    for key in ("n", "m", "k"):
        if not hasattr(config, key):
            continue
        at = [_with(config, **{key: count}).forwards_per_step for count in (8, 9)]
        if slope := at[1] - at[0]:
            more = at[0] - 8 * slope
            formula = f"{slope if slope > 1 else ''}{key}{f' + {more}' if more else ''}"
            return f"{formula}: {default}"
    return str(default)


def _with(config: MethodConfig, **changed: Any) -> MethodConfig:
    known = {of.name: getattr(config, of.name) for of in fields(config)}
    return type(config)(**{**known, **changed})


def methods() -> Iterator[str]:
    """Yields cost, formula and settings of each method."""
    yield "## Cost\n"
    yield (
        "Forward passes of a step with default settings; a backward pass is not among them. State: tensors of the"
        " weights' size, the gradient included; smaller ones are named with each method.\n"
    )
    rows = []
    for name, method in OPTIMIZERS.items():
        of = method.config(
            **{k: v for k, v in file_of("optimizer", name).items() if k != "defaults"}
        )
        low_rank = of.low_rank or "low_rank" in str(ranges_of(method.config).get("directions", ""))
        facts = (of.replays, low_rank, of.supports_sharding, of.scale_invariant)
        marks = ("yes" if fact else "" for fact in facts)
        rows.append(
            (
                f"[`{name}`](#{method.title.lower()})",
                passes(of),
                str(of.state_tensors or ""),
                *marks,
            )
        )
    columns = (
        "`optimizer=`",
        "forward passes",
        "state",
        "replays",
        "`restore=factors`",
        "sharded",
        "ignores the loss's scale",
    )
    yield table(columns, rows)
    common = [of.name for of in fields(ZerothOrderConfig)]
    yield "## Settings of every zeroth-order method\n"
    yield keys(ZerothOrderConfig, "optimizer.", {})
    for name, kind in option_schemas()["optimizer"].items():
        method = OPTIMIZERS.get(name)
        title = method.title if method else kind.__name__.removesuffix("Config")
        about = method.about if method else kind
        called = f"`optimizer={name}`" + f", `zo.{title}`" * bool(method and kind.replays)
        yield f"## {title}\n"
        yield f"{called}. {sections(about)['']}\n"
        yield keys(kind, "optimizer.", file_of("optimizer", name), common)


def described(call: Any, name: str) -> Iterator[str]:
    """Yields a class or a function as its docstring has it."""
    found = sections(call)
    yield f"## {name}\n"
    yield found.pop("") + "\n"
    for title, text in found.items():
        yield f"**{title}**\n"
        if title == "Example":
            yield f"```pycon\n{text}\n```\n"
        elif title == "Returns":
            yield text + "\n"
        else:
            yield "".join(f"- `{key}`: {said}\n" for key, said in entries(text).items())


def library() -> Iterator[str]:
    """Yields what the library's classes have in common, and its functions."""
    yield from described(zo.ZerothOrder, "zo.ZerothOrder")
    yield from described(zo.StepInfo, "zo.StepInfo")
    for name in ("optimizer", "replay", "offload"):
        yield from described(getattr(zo, name), f"zo.{name}")
    yield from described(ZOTrainer, "ZOTrainer")


WRITTEN = {
    "configuration": configuration,
    "commands": commands,
    "methods": methods,
    "library": library,
}


def page(name: str) -> str:
    """Returns a page of the reference as the code has it."""
    path = PAGES / f"{name}.md"
    above = path.read_text(encoding="utf-8").partition(MARK)[0]
    return above + MARK + "\n" + "\n".join(filter(None, WRITTEN[name]()))


if __name__ == "__main__":
    for name in WRITTEN:
        (PAGES / f"{name}.md").write_text(page(name), encoding="utf-8")
