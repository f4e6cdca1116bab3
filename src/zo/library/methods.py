"""The methods as classes, made from the settings and the files in `zo.optim`; and what makes one by its name."""

# ruff: noqa: D101 (the classes that checkers see)

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from difflib import get_close_matches
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from torch import nn

from zo.library.arguments import Parameters
from zo.library.optimizer import ZerothOrder
from zo.optim import OPTIMIZERS, Method, from_file
from zo.optim.config import ZerothOrderConfig, ranges_of
from zo.record.header import header_of
from zo.record.recorder import read_record
from zo.record.replay import check_fit, replay_steps
from zo.record.trajectory import Trajectory, TrajectoryError

GIVEN_BY_ALL = ("weight_decay", *(of.name for of in fields(ZerothOrderConfig) if of.name != "name"))
"""Settings of every method: they stand behind its own in a signature."""

NOT_ARGUMENTS = ("name", "groups", "decays")
"""Keys of a record's header that are no arguments of the constructor."""


EXAMPLE = """Example:
    >>> optimizer = zo.{}(model, lr=1e-4{})
    >>> loss = optimizer.step(lambda: model(x).square().mean())"""


class _Documentation:
    """A class's `__doc__`, assembled when it is read: formula, cost, source and every setting."""

    def __get__(self, _: object, kind: type[ZerothOrder]) -> str:
        method = OPTIMIZERS[kind.name]
        about = inspect.getdoc(method.about) or ""
        paragraphs = [p for p in about.split("\n\n") if not p.startswith("Deviations")]
        texts = _texts_of(ZerothOrder, "Args") | _texts_of(method.config, "Attributes")
        arguments = [f"    {key}: {texts[key]}" for key in inspect.signature(kind).parameters]
        of_texts = getattr(method.config, "baseline", "") == "prompt"
        example = EXAMPLE.format(kind.__name__, ', baseline="population"' * of_texts)
        return "\n\n".join([*paragraphs, example, "\n".join(["Args:", *arguments, ""])])


def _texts_of(kind: type, section: str) -> dict[str, str]:
    """Returns the entries of a section in the docstrings of a class and its bases, by name."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = (inspect.getdoc(base) or "").partition(f"{section}:\n")[2].partition("\n\n")[0]
        for entry in re.split(r"\n(?=    \w)", text.rstrip()):
            key, _, text = entry.strip().partition(": ")
            found[key] = " ".join(text.split())
    return found


def _signature(config: type) -> inspect.Signature:
    """Returns the constructor's signature: that of `ZerothOrder` with a method's settings in place of `**settings`."""
    *given, _ = inspect.signature(ZerothOrder.__init__).parameters.values()
    common = {of.name: of for of in given[1:]}
    types: dict[str, Any] = get_type_hints(config)
    ranges = ranges_of(config)
    types |= {key: Literal[of.options] for key, of in ranges.items() if of.options}
    settings = sorted(fields(config), key=lambda of: of.name in GIVEN_BY_ALL)
    own = [
        Parameter(of.name, Parameter.KEYWORD_ONLY, default=of.default, annotation=types[of.name])
        for of in settings
        if of.name != "name"
    ]
    first = [common.pop(key) for key in ("params", "lr")]
    others = (of for of in common.values() if of.name not in types)
    return inspect.Signature([*first, *own, *others])


def _class_of(name: str, method: Method) -> type[ZerothOrder]:
    """Returns a method's class."""
    members = {"name": name, "__doc__": _Documentation(), "__module__": __name__}
    made = type(method.title, (ZerothOrder,), members)
    made.__signature__ = _signature(method.config)  # type: ignore[attr-defined]
    return made


METHODS: dict[str, type[ZerothOrder]] = {
    name: _class_of(name, method) for name, method in OPTIMIZERS.items() if method.config.replays
}

if TYPE_CHECKING:  # checkers make constructors of the fields, as of dataclasses
    from zo.optim import config_bszo as _bszo
    from zo.optim import config_evolution as _evolution
    from zo.optim import config_low_rank as _low_rank
    from zo.optim import config_spsa as _spsa

    # fmt: off
    class MeZO(ZerothOrder, _spsa.MeZOConfig): ...
    class MeZOAdam(ZerothOrder, _spsa.MeZOAdamConfig): ...
    class HiZOO(ZerothOrder, _spsa.HiZOOConfig): ...
    class LOZO(ZerothOrder, _low_rank.LOZOConfig): ...
    class BSZO(ZerothOrder, _bszo.BSZOConfig): ...
    class BSZOB(ZerothOrder, _bszo.BSZOBConfig): ...
    class ZOSign(ZerothOrder, _spsa.ZOSignConfig): ...
    class ZOMomentum(ZerothOrder, _spsa.ZOMomentumConfig): ...
    class ZOConservative(ZerothOrder, _spsa.ZOConservativeConfig): ...
    class SparseMeZO(ZerothOrder, _spsa.SparseMeZOConfig): ...
    class ConMeZO(ZerothOrder, _spsa.ConMeZOConfig): ...
    class AdaMeZO(ZerothOrder, _spsa.AdaMeZOConfig): ...
    class FZOO(ZerothOrder, _spsa.FZOOConfig): ...
    class LOZOM(ZerothOrder, _low_rank.LOZOMConfig): ...
    class SubZero(ZerothOrder, _low_rank.SubZeroConfig): ...
    class TeZO(ZerothOrder, _low_rank.TeZOConfig): ...
    class ZOMuon(ZerothOrder, _low_rank.ZOMuonConfig): ...
    class ES(ZerothOrder, _evolution.ESConfig): ...
    class ESAtScale(ZerothOrder, _evolution.ESAtScaleConfig): ...
    class EGGROLL(ZerothOrder, _evolution.EGGROLLConfig): ...
    # fmt: on

else:
    globals().update({kind.__name__: kind for kind in METHODS.values()})


def method_named(name: str) -> type[ZerothOrder]:
    """Returns the optimizer class of a method's name, or of `file.py:Class`, which is run.

    Raises:
        ValueError: If there is none.
    """
    if not isinstance(name, str):
        raise TypeError("optimizer: the name comes first, as zo.optimizer('mezo', model, lr=1e-6)")
    if ".py:" in name:
        try:
            title = from_file.register(name)
        except ValueError as error:
            raise ValueError(f"method {name!r}: {error}") from None
        METHODS[title] = _class_of(title, OPTIMIZERS[title])
        return METHODS[title]
    if name not in METHODS:
        close = get_close_matches(name.lower(), METHODS, n=1)
        meant = f"did you mean {close[0]}? It " * bool(close)
        raise ValueError(f"method {name!r}: {meant}must be one of {', '.join(METHODS)}")
    return METHODS[name]


def optimizer(name: str, params: Parameters, lr: float, **kwargs: Any) -> ZerothOrder:
    """Returns the optimizer of a method's name, `bszo` and so on, or of `my_method.py:MyMethod`, a file's class.

    Other arguments are those of the method's class, as `zo.BSZO`.

    Example:
        >>> optimizer = zo.optimizer("bszo", model, lr=1e-4, k=2, seed=1)
        >>> loss = optimizer.step(lambda: model(x).square().mean())

    Raises:
        ValueError: If there is no such method, or a setting is out of range.
    """
    return method_named(name)(params, lr, **kwargs)


def replay(
    params: Parameters,
    record: str | Path,
    steps: int | None = None,
    model: nn.Module | None = None,
    method: str | None = None,
) -> ZerothOrder:
    """Restores the weights of a recorded training, without a forward pass.

    Example:
        >>> base = copy.deepcopy(model)
        >>> with zo.BSZO(model, lr=1e-4, record="run.zo") as optimizer:
        ...     loss = optimizer.step(lambda: model(x).square().mean())
        >>> zo.replay(base, "run.zo").step_index
        1

    Args:
        params: The model before the first step, or its tensors, as they were given to the optimizer.
        record: The file that `record=` wrote.
        steps: How many steps to replay; None is all.
        model: The model of tensors or groups, which `streamed` and `factors` need.
        method: `my_method.py:MyMethod` of a record that a method in a file made; the file is run.

    Returns:
        The optimizer after these steps. Training can go on with it.

    Raises:
        TrajectoryError: If the file is no record, or of other weights, other groups or other noise; if it is damaged
            or cut off and `steps` is None; or if the weights become others than those of the training.
        ValueError: If it has fewer steps.
    """
    if method is not None:
        method_named(method)
    found = read_record(Path(record))
    if found.torn and steps is None:
        whole = len(found.losses)
        raise TrajectoryError(
            f"{record}: what follows step {whole} is cut off or was altered; steps={whole} makes those before it"
        )
    kind, config = _recorded(found)
    made = kind(params, 0.0, model=model, **config)
    here = header_of(made.method)
    for key in ("groups", "decays"):
        if found.header.config[key] != here.config[key]:
            raise TrajectoryError(f"{record}: of other tensors or parameter groups")
    check_fit(found, here.base, here.noise)
    count = len(found.losses) if steps is None else steps
    if not 0 <= count <= len(found.losses):
        raise ValueError(f"steps={steps}: {record} has {len(found.losses)}")
    if (info := replay_steps(found, made.method, count)) is not None:
        made.info = info
        for group, rate in zip(made.param_groups, made.method.rates, strict=True):
            group.update(rate._asdict())
    return made


def _recorded(found: Trajectory) -> tuple[type[ZerothOrder], dict[str, Any]]:
    """Returns the class that made a record, and its arguments.

    Raises:
        TrajectoryError: If there is no such method here, or it has no such setting.
    """
    given = found.header.config
    name, config = given["name"], {k: v for k, v in given.items() if k not in NOT_ARGUMENTS}
    if name not in METHODS:
        raise TrajectoryError(
            f"{found.path}: made by {name}, which is no method here; there are {', '.join(METHODS)}, and of a file is"
            f" method='my_method.py:{name}'"
        )
    kind = METHODS[name]
    if unknown := config.keys() - inspect.signature(kind).parameters.keys():
        raise TrajectoryError(
            f"{found.path}: made with {', '.join(sorted(unknown))}, which {name} does not have here; replay it with the"
            " version of zo that recorded it, or a newer one"
        )
    return kind, {**OPTIMIZERS[name].config.legacy_defaults, **config}
