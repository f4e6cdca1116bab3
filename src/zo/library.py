"""The methods as torch optimizers, for anybody's training loop: `zo.BSZO(model, lr=1e-6, k=2)`.

Each wraps the method that the suite runs, `zo.optim`. What is added here: parameter groups whose learning rate and
weight decay may change, a check of the closure, `state_dict`, and the record of a training.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zo.distributed.closure import SAME, DataParallel, ElasticParallel, TensorParallel, Together
from zo.distributed.elastic import Elastic
from zo.distributed.processes import Processes
from zo.noise import NOISES
from zo.optim import OPTIMIZERS, SHARDABLE
from zo.optim.base import LossFn, Rates, StepInfo
from zo.optim.config import MethodConfig
from zo.optim.losses import number
from zo.record import Received, Recorder, check, header_of, read_record, repeat
from zo.weights.constraints import RESTORE_POLICIES
from zo.weights.sharded import part_of
from zo.weights.space import ParameterSpace

Parameters: TypeAlias = (
    nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
)
Closure: TypeAlias = Callable[..., Tensor | float]


class ZerothOrder(torch.optim.Optimizer):
    """A zeroth-order method as a torch optimizer: `step(closure)` moves the weights without a backward pass.

    Args:
        params: A model, of which all parameters that require gradients are trained; or its tensors, (name, tensor)
            pairs, or torch's parameter groups. Of a model, weight decay spares biases and normalisation layers. Of
            tensors and groups it spares none.
        lr: Learning rate η ≥ 0.
        weight_decay: λ ≥ 0 of groups that give none.
        seed: Seed of all directions.
        restore: How the weights come back after a probe: `merged`, `subtract`, `snapshot`, `streamed` or `factors`.
            None is `merged`, or where the method's directions depend on the weights `streamed`, of tensors `snapshot`.
        noise: What draws directions: `torch` or `philox`.
        rounding: How updates of half-precision weights are rounded: `nearest`, `stochastic` or `compensated`.
        model: The model of tensors or groups, which `streamed` and `factors` need.
        check_closure: Whether the first step measures the loss twice and refuses a difference.
        record: File to which every step is written, for `zo.replay`; process 0 of a group writes it.
        group: Processes that train together. Each calls `step` with the loss of its own part of the batch; the parts
            have equally many examples. The step's loss is their mean, in the order of ranks.
        check_every: Steps between comparisons of the weights of a group's processes; None compares them only here.
        settings: The method's own, as in its YAML file in conf/optimizer: `eps`, `k`, …

    Attributes:
        method: The method, with the weights that it moves.
        info: The last step's loss, signals, record and losses; None before the first.

    Raises:
        TypeError: If the method has no such setting.
        ValueError: If a setting is out of range, the weights cannot be trained as asked, or the processes of a group
            have different settings or weights.
    """

    name: ClassVar[str]
    """In `zo.optim.OPTIMIZERS`."""

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: str | None = None,
        noise: str = "torch",
        rounding: str = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        elastic: Elastic | None = None,
        check_every: int | None = 100,
        **settings: Any,
    ):
        config = _config(self.name, {"weight_decay": weight_decay, **settings})
        if not (math.isfinite(lr) and lr >= 0):
            raise ValueError(f"lr={lr}: must be at least 0")
        if noise not in NOISES:
            raise ValueError(f"noise={noise!r}: must be one of {', '.join(NOISES)}")
        if restore is None:
            whole = isinstance(params, nn.Module) or model is not None
            exact = config.reads_weights or elastic is not None
            restore = "merged" if not exact else "streamed" if whole else "snapshot"
        if isinstance(params, nn.Module):
            space = ParameterSpace.of(params, restore, noise, rounding)
            groups: list[dict[str, Any]] = [{"params": space.parameters}]
        else:
            groups, named = _groups(params)
            space = ParameterSpace(named, restore, (), noise, rounding, model)
        self._check = check_closure
        self._recorder: Recorder | None = None
        self.info: StepInfo | None = None
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})
        if len(self.param_groups) > 1 and restore == "factors":
            raise ValueError("restore='factors': takes one parameter group")
        group_of = {id(p): i for i, g in enumerate(self.param_groups) for p in g["params"]}
        self.method = OPTIMIZERS[self.name].optimizer(space, config, lr=lr, seed=seed)
        self.method.group_of = [group_of[id(p)] for p in space.parameters]
        if space.sharded and self.name not in SHARDABLE:
            raise ValueError(
                f"{self.name}: cannot move sharded weights; one of {', '.join(SHARDABLE)} can"
            )
        for setting, given in (("record", record), ("elastic", elastic)):
            if space.sharded and given is not None:
                raise ValueError(f"{setting}: the weights are sharded; it needs whole ones")
        if record is not None:
            self._recorder = Recorder(Path(record), self.method)
        self._together: Together | None = None
        settled = {**asdict(config), "lr": lr, "seed": seed, "restore": restore}
        settled |= {"noise": noise, "rounding": rounding}
        if elastic is not None:
            if group is not None:
                raise ValueError("group and elastic: give one of them")
            self._together = self._elastic(elastic, check_every, settled)
        elif group is not None:
            self._together = DataParallel(group, check_every, self.method, settled)
        elif space.sharded:
            self._together = TensorParallel(self.method, settled)
        if self._together is not None and not self._together.processes.leads:
            self._recorder = None

    def _elastic(
        self, elastic: Elastic, check_every: int | None, settings: dict[str, Any]
    ) -> ElasticParallel:
        """Returns what makes the steps with processes that come and go, all steps made so far replayed."""
        restore = self.method.params.restore
        if not RESTORE_POLICIES[restore].exact:
            exact = ", ".join(name for name, of in RESTORE_POLICIES.items() if of.exact)
            raise ValueError(
                f"restore={restore!r}: a step that lost a process is made again, and {restore} leaves rounding"
                f" behind; with elastic it must be one of {exact}"
            )
        header = header_of(self.method)
        told = {**settings, "groups": self.method.group_of, "the base weights": header.base}
        told |= {"the noise": header.noise}
        received, recorder = Received(self.method), self._recorder
        if elastic.leads:
            if recorder is None:
                raise ValueError("record: the process that leads needs it; name a file")
            self.goes_on_from(recorder.catch_up(header))
        after = (lambda _: b"") if recorder is None else recorder.after
        made = ElasticParallel(elastic, check_every, self.method, told, after, received.replay)
        self.goes_on_from(received.info)
        return made

    @property
    def step_index(self) -> int:
        """Steps made so far."""
        return self.method.step_index

    @property
    def processes(self) -> Processes | None:
        """The processes that make the steps together; None if there is one."""
        return None if self._together is None else self._together.processes

    def goes_on_from(self, replayed: StepInfo | None) -> None:
        """Takes over result and rates of the last step that was replayed; None is none."""
        if replayed is None:
            return
        self.info = replayed
        for group, rate in zip(self.param_groups, self.method.rates, strict=True):
            group.update(rate._asdict())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group while the optimizer is made; refuses one afterwards, since noise belongs to positions."""
        if hasattr(self, "method"):
            raise RuntimeError("parameter groups are fixed: make a new optimizer")
        super().add_param_group(param_group)

    @torch.no_grad()  # not inference_mode: a model may cache tensors that a later backward pass needs
    def step(self, closure: Closure | None = None) -> float:  # type: ignore[override]
        """Makes one step.

        Args:
            closure: Returns the loss of one fixed mini-batch at the current weights; called several times.

        Returns:
            The mini-batch's loss, at the weights before the step or as near to them as the method measures.

        Raises:
            TypeError: If there is no closure, or it returns no number.
            ValueError: If two calls at the same weights differ.
            NonFiniteError: If a loss is not finite. The weights are those before the step.
            ProcessLostError: If another process of the group ended or did not answer in time.
            ProcessesError: If the weights of the group's processes differ.
        """
        if closure is None:
            raise TypeError("step: needs a closure that returns the loss of one mini-batch")
        self._check_storage()
        if self._check:
            if self._together is None:
                _check_repeats(closure)
            else:
                with self._together.checking():
                    _check_repeats(self._together.own(closure))
            self._check = False
        rates = [Rates(float(g["lr"]), float(g["weight_decay"])) for g in self.param_groups]
        self.method.rates = rates
        if self._recorder is not None:
            self._recorder.begin()
        if self._together is None:
            self.info = self.method.step(cast("LossFn", closure))  # it takes tensors, too
        else:
            self.info = self._together.step(self.method, closure)
        if self._recorder is not None:
            self._recorder.append(rates, self.info.losses)
        return self.info.loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: there are no gradients."""

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the next step depends on beside the weights and the constructor's arguments."""
        groups = super().state_dict()["param_groups"]
        return {"name": self.name, "state": self.method.state_dict(), "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from a `state_dict` of the same method.

        Raises:
            ValueError: If it is of another method or has other groups.
        """
        if state_dict.get("name") != self.name:
            raise ValueError(f"state: of {state_dict.get('name')}, but this is {self.name}")
        given = state_dict["param_groups"]
        sizes = [len(g["params"]) for g in given], [len(g["params"]) for g in self.param_groups]
        if sizes[0] != sizes[1]:
            raise ValueError(f"state: groups of {sizes[0]} tensors, but this has {sizes[1]}")
        self.method.load_state_dict(state_dict["state"])
        for group, values in zip(self.param_groups, given, strict=True):
            group.update({k: v for k, v in values.items() if k != "params"})

    def _check_storage(self) -> None:
        """Raises RuntimeError if the model's weights are no longer the tensors that steps would move."""
        space = self.method.params
        for name, given, tensor in zip(space.names, space.parameters, space.tensors, strict=True):
            p, _ = part_of(given)
            if (
                p.device != tensor.device
                or p.dtype != tensor.dtype
                or p.data_ptr() != tensor.data_ptr()
            ):
                raise RuntimeError(
                    f"{name}: moved since the optimizer was made, as by model.to(...); make the optimizer afterwards"
                )


def _optimizer_class(name: str, title: str) -> type[ZerothOrder]:
    """Returns the class of a registered method."""
    doc = f"{title}, see `zo.optim.{OPTIMIZERS[name].module}`; settings as in conf/optimizer/{name}.yaml."
    return type(title, (ZerothOrder,), {"name": name, "__doc__": doc, "__module__": __name__})


METHODS: dict[str, type[ZerothOrder]] = {
    name: _optimizer_class(name, method.title)
    for name, method in OPTIMIZERS.items()
    if method.config.trains and method.config.replays
}
"""Name -> class, of every registered zeroth-order method; each class is an attribute of this module, too."""

globals().update({kind.__name__: kind for kind in METHODS.values()})


def method_named(name: str) -> type[ZerothOrder]:
    """Returns the optimizer class of a method's name.

    Raises:
        ValueError: If there is none.
    """
    if name not in METHODS:
        raise ValueError(f"method {name!r}: must be one of {', '.join(METHODS)}")
    return METHODS[name]


def optimizer(name: str, params: Parameters, lr: float, **kwargs: Any) -> ZerothOrder:
    """Returns the optimizer of a method's name, `bszo` and so on; other arguments as of `ZerothOrder`."""
    return method_named(name)(params, lr, **kwargs)


def _config(name: str, settings: Mapping[str, Any]) -> MethodConfig:
    """Returns the method's settings."""
    known = [f.name for f in fields(OPTIMIZERS[name].config) if f.name != "name"]
    for key in settings:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise TypeError(f"{key}: {name} has no such setting; {hint}")
    config = OPTIMIZERS[name].config(**settings)
    for key, right in config.problems():
        raise ValueError(f"{key}={getattr(config, key)}: {right}")
    return config


def _groups(params: Any) -> tuple[list[dict[str, Any]], list[tuple[str, Tensor]]]:
    """Returns torch's parameter groups, and all their tensors with names."""
    given = list(params)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    made: list[dict[str, Any]] = []
    named: list[tuple[str, Tensor]] = []
    for group in groups:
        of = group["params"]
        if isinstance(of, nn.Module):
            of = [(n, p) for n, p in of.named_parameters() if p.requires_grad]
        elif isinstance(of, Tensor):
            of = [of]
        pairs = [p if isinstance(p, tuple) else (str(len(named) + i), p) for i, p in enumerate(of)]
        named += pairs
        made.append({**group, "params": [p for _, p in pairs]})
    return made, named


def _check_repeats(closure: Closure) -> None:
    """Raises ValueError if two calls of a closure differ by more than rounding."""
    first, second = number(closure()), number(closure())
    same = math.isclose(first, second, rel_tol=SAME) or not math.isfinite(first + second)
    if not same:
        raise ValueError(
            f"closure: two calls at the same weights gave {first} and {second}. The usual causes: dropout is on (call "
            "model.eval()), or the closure draws its own batch or random numbers (draw them before step). "
            "check_closure=False goes on all the same."
        )


def replay(params: Parameters, record: str | Path, steps: int | None = None) -> ZerothOrder:
    """Makes the weights of a recorded training, without a forward pass.

    Args:
        params: The model before the first step, or its tensors, as they were given to the optimizer.
        record: The file that `record=` wrote.
        steps: How many steps to make again; None is all.

    Returns:
        The optimizer after these steps. Training can go on with it.

    Raises:
        TrajectoryError: If the file is no record, or of other weights, other groups or other noise.
        ValueError: If it has fewer steps.
    """
    found = read_record(Path(record))
    config = dict(found.header.config)
    name = [config.pop(key) for key in ("groups", "decays", "name")][-1]
    made = method_named(name)(params, 0.0, **config)
    check(found, header_of(made.method))
    count = len(found.losses) if steps is None else steps
    if not 0 <= count <= len(found.losses):
        raise ValueError(f"steps={steps}: {record} has {len(found.losses)}")
    made.goes_on_from(repeat(found, made.method, count))
    return made
