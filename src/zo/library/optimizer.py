"""The methods as torch optimizers, for anybody's training loop: `zo.BSZO(model, lr=1e-6, k=2)`.

Each wraps the method that the suite runs, `zo.optim`. What is added here: parameter groups whose learning rate and
weight decay may change, a check of the closure, `state_dict`, and the record of a training.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zo.distributed.closure import StepProcesses
from zo.library.arguments import (
    Closure,
    Parameters,
    check_processes,
    check_state,
    config_of,
    groups_of,
    noise_for,
    typed,
)
from zo.library.inference import InferenceTrial
from zo.library.preflight import Preflight, rates_of
from zo.library.step_context import step_context
from zo.noise import NOISES, compiling
from zo.optim import OPTIMIZERS, SHARDABLE
from zo.optim.base import StepInfo
from zo.record.header import fingerprint
from zo.record.recorder import Recorder
from zo.weights.constraints import RESTORE_POLICIES
from zo.weights.loss import ClosureLoss
from zo.weights.policy_check import PolicyCheck
from zo.weights.space import ParameterSpace

if TYPE_CHECKING:
    from dataclasses import field
    from typing import Literal, Self, dataclass_transform

    @dataclass_transform(kw_only_default=True, field_specifiers=(field,))
    class _Base(torch.optim.Optimizer):
        """Has checkers read the arguments of a method's constructor from annotations."""

else:
    _Base = torch.optim.Optimizer


class ZerothOrder(_Base):
    """A zeroth-order method as a torch optimizer: `step(closure)` moves the weights without a backward pass.

    Base of all methods of `zo`. As a context manager it calls `close` at the end.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups. Those that require gradients
            are trained. Of a model, weight decay spares biases and normalisation layers. Of the others it spares none.
        lr: Learning rate η ≥ 0.
        weight_decay: λ ≥ 0 of groups that give none.
        seed: Seed of all directions.
        restore: How the weights come back after a probe: `merged`, `subtract`, `snapshot`, `streamed` or `factors`.
            None is `merged`, or where the method's directions depend on the weights `streamed`, of tensors `snapshot`.
        noise: What draws directions: `torch` or `philox`. None is `philox` where numba or Triton compiles it for the
            weights' devices, else `torch`.
        rounding: How updates of half-precision weights are rounded: `nearest`, `stochastic` or `compensated`.
        model: The model of tensors or groups, which `streamed` and `factors` need.
        check_closure: Whether to measure twice at the first step, and at one with more modules in training mode than
            before, and to refuse different losses or changed buffers. The first step also compares a displaced loss
            with that of a displaced copy of the weights, and so does one whose model has other hooks or classes.
        record: File to which every step is written, for `zo.replay`; process 0 of a group writes it.
        group: Processes that train together. Each calls `step` with the loss of its own part of the batch; the parts
            have equally many examples. The step's loss is their mean, in the order of ranks.
        check_every: Steps between comparisons of the weights of a group's processes; None compares them only here.
        settings: The method's own, as in its YAML file in conf/optimizer: `eps`, `k`, …

    Attributes:
        method: The method, with the weights that it moves.
        processes: The processes that make the steps together; None if there is one.
        info: The last step, a `StepInfo` with loss, losses, forwards, coefficients and scalars; None before the first.

    Raises:
        TypeError: If the method has no such setting.
        ValueError: If a setting is out of range, the weights cannot be trained as asked, or the processes of a group
            have different settings or weights.
    """

    name: ClassVar[str]
    """In `zo.optim.OPTIMIZERS`."""

    if TYPE_CHECKING:
        params: Parameters = field(kw_only=False)
        lr: float = field(kw_only=False)
        weight_decay: float = 0.0
        seed: int = 0
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None
        noise: Literal["torch", "philox"] | None = None
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest"
        model: nn.Module | None = None
        check_closure: bool = True
        record: str | Path | None = None
        group: dist.ProcessGroup | None = None
        check_every: int | None = 100

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: str | None = None,
        noise: str | None = None,
        rounding: str = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
        **settings: Any,
    ):
        config = config_of(self.name, {"weight_decay": weight_decay, **settings})
        lr = typed("lr", lr, float)
        if lr < 0:
            raise ValueError(f"lr={lr}: must be at least 0")
        seed = typed("seed", seed, int)
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed={seed}: must fit into 64 bits, as a number below 2**63")
        if noise is not None and noise not in NOISES:
            raise ValueError(f"noise={noise!r}: must be one of {', '.join(NOISES)}")
        if restore is None:
            known = isinstance(params, nn.Module) or model is not None
            exact = "streamed" if known else "snapshot"
            restore = exact if config.reads_weights else "merged"
        self._given: list[tuple[str, Tensor]] = []
        if isinstance(params, nn.Module):
            self._given += params.named_parameters()
            noise = noise or noise_for(self._given)
            space = ParameterSpace.of(params, restore, noise, rounding)
            groups: list[dict[str, Any]] = [{"params": space.parameters}]
        else:
            groups, self._given = groups_of(params)
            trained = [(name, p) for name, p in self._given if p.requires_grad]
            noise = noise or noise_for(trained)
            space = ParameterSpace(trained, restore, (), noise, rounding, model)
        self._start = fingerprint(space) if getattr(config, "anchored", False) else None
        self._recorder: Recorder | None = None
        self.info: StepInfo | None = None
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})
        if len(self.param_groups) > 1 and RESTORE_POLICIES[restore].low_rank:
            raise ValueError(f"restore={restore!r}: takes one parameter group")
        group_of = {id(p): i for i, g in enumerate(self.param_groups) for p in g["params"]}
        self.method = OPTIMIZERS[self.name].optimizer(space, config, lr=lr, seed=seed)
        for advice in self.method.advice:
            warnings.warn(advice, stacklevel=2)
        self.method.group_of = [group_of[id(p)] for p in space.parameters]
        if space.shards and self.name not in SHARDABLE:
            raise ValueError(
                f"{self.name}: cannot move sharded weights; one of {', '.join(SHARDABLE)} can"
            )
        if space.shards and record is not None:
            raise ValueError("record: the weights are sharded; it needs whole ones")
        if self.method.start is not None and RESTORE_POLICIES[restore].low_rank:
            raise ValueError(
                f"restore={restore!r}: must be another with anchor='start': a merged step is not pulled back"
            )
        rates_of(self.param_groups)
        whole = params if isinstance(params, nn.Module) else model
        alone = group is None and not space.shards
        self._preflight = Preflight(
            whole, space, self._given, self.param_groups, whole is params, check_closure, alone
        )
        self._devices = {t.device.type for t in space.like}
        self._trial = InferenceTrial(not space.shards)  # gathered parts have versions
        check_processes(space, whole, grouped=group is not None)
        if record is not None:
            self._recorder = Recorder(Path(record), self.method)
        values = {**asdict(config), "lr": lr, "seed": seed, "restore": restore}
        values |= {"noise": noise, "rounding": rounding}
        unchecked = ("name", "lr", "weight_decay")
        self._settings = {k: v for k, v in values.items() if k not in unchecked}
        self._together = StepProcesses(self.method, group, check_every, values)
        self.processes = self._together.processes if group is not None or space.shards else None
        if not self._together.processes.leads:
            self._recorder = None

    @property
    def step_index(self) -> int:
        """Steps made so far."""
        return self.method.step_index

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group while the optimizer is made; refuses one afterwards, since noise belongs to positions."""
        if hasattr(self, "method"):
            raise RuntimeError("parameter groups are fixed: make a new optimizer")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float:  # type: ignore[override]
        """Makes one step.

        Args:
            closure: Returns the loss of one fixed mini-batch at the current weights; called several times. It may offer
                `mean_square`, `branches` and `branch_bytes`, see `zo.weights.loss.ClosureLoss`.

        Returns:
            The mini-batch's loss, at the weights before the step or as near to them as the method measures.

        Raises:
            TypeError: If there is no closure, or it returns no number.
            ValueError: If two calls at the same weights differ, or a rate is negative or not finite.
            RuntimeError: If a weight was moved, replaced, frozen or unfrozen since the optimizer was made.
            NonFiniteError: If a loss is not finite. The weights are those before the step.
            ProcessLostError: If another process of the group ended or did not answer in time.
            ProcessesError: If the weights of the group's processes differ.
        """
        if not callable(closure):
            raise TypeError(
                "step: needs a closure that computes the loss of one mini-batch again, as step(lambda:"
                " model(**batch).loss)" + ". get_state_dict has none: save the optimizer itself, by"
                " torch.distributed.checkpoint.save({'optimizer': optimizer})" * (closure is None)
            )
        compiled, method, space = compiling.seconds, self.method, self.method.params
        loss = ClosureLoss(closure, self._trial)
        rates = self._preflight.check(self.param_groups, loss, method)
        first = False
        if self._preflight.due():
            first = self._preflight.first  # modes may differ later
            with self._together.processes.together() if first else nullcontext():
                self._preflight.check_closure(loss)
        exact = space.policy.constraints.exact
        with step_context(self._devices, exact) as loss.context:
            method.rates = rates
            method.watches_rounding = method.step_index == 0
            merged = self._merged_by_reader()
            if self._recorder is not None:
                self._recorder.begin(merged)
            executor = self._together.executor(loss)
            check = PolicyCheck(space, executor.alone, self._together.processes.gather)
            try:
                with check.watching() if first else nullcontext():
                    info = method.step(executor)
                    self._together.watch.after_step(method)
            except BaseException:
                if self._recorder is not None and not exact:
                    self._recorder.broken_off = True
                raise
            if check.short:
                warnings.warn(check.said, stacklevel=4)
            self.info = info
            if self._recorder is not None:
                self._recorder.append(rates, info.losses)
        if self._together.processes.leads:
            self._preflight.look_at(method.step_index, info, compiling.seconds - compiled)
        return info.loss

    def __repr__(self) -> str:
        groups = [
            {key: group[key] for key in ("lr", "weight_decay")} for group in self.param_groups
        ]
        rates = groups[0] if len(groups) == 1 else {"groups": groups}
        said = ", ".join(f"{key}={value!r}" for key, value in {**rates, **self._settings}.items())
        return f"{type(self).__name__}({said})"

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: there are no gradients."""

    def close(self) -> None:
        """Ends the record with a digest of the weights and closes it; a later step opens it again.

        Under `restore="factors"` the trained model gets its own forwards back, and no step can follow.
        """
        policy = self.method.params.policy
        if self._recorder is not None:
            self._recorder.close(policy.merged_for_reader)
        policy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the next step depends on beside the weights and the constructor's arguments."""
        self._merge_for_reader()  # else the weights' readers would, and the state count it twice
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        groups, at = [], 0
        for group in self.param_groups:
            numbers = list(range(at, at := at + len(group["params"])))
            groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": numbers})
        state = {
            "name": self.name,
            "settings": self._settings,
            "shapes": [list(p.shape) for p in self.method.params.parameters],
            "state": self.method.state_dict(),
            "param_groups": groups,
            **({} if self._start is None else {"start": self._start}),
        }
        for after in self._optimizer_state_dict_post_hooks.values():
            state = after(self, state) or state
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from a `state_dict` of the same method and settings; rates are the state's.

        Raises:
            ValueError: If it is of another method, of other settings, tensors or groups, or not whole.
        """
        state_dict = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        for key in {"name", "state", "param_groups"} - state_dict.keys():
            raise ValueError(f"state: lacks {key}; give what state_dict returned")
        if state_dict["name"] != self.name:
            raise ValueError(f"state: of {state_dict['name']}, but this is {self.name}")
        given = state_dict["param_groups"]
        sizes = [len(g["params"]) for g in given], [len(g["params"]) for g in self.param_groups]
        if sizes[0] != sizes[1]:
            raise ValueError(f"state: groups of {sizes[0]} tensors, but this has {sizes[1]}")
        check_state(state_dict, self._settings, self.method.params)
        if state_dict.get("start", self._start) != self._start:
            raise ValueError(
                "state: of a training from other weights, to which anchor='start' would not pull; make the optimizer"
                " of the model before its first step, then load the weights and the state"
            )
        self.method.load_state_dict(state_dict["state"])
        for group, values in zip(self.param_groups, given, strict=True):
            group.update({k: v for k, v in values.items() if k != "params"})
        if self._recorder is not None:
            self._recorder.suspend()
        self._merge_for_reader(made=True)  # the state's were when it was made
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses copies and pickles.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"{type(self).__name__}: cannot be copied or pickled, since it moves one model's weights; make an optimizer"
            " of the other model and load this one's state_dict"
        )

    def _merge_for_reader(self, made: bool = False) -> None:
        """Merges factors into the weights between two steps; `made` says that this counts even if all are 0."""
        policy = self.method.params.policy
        policy.merge_for_reader()
        policy.merged_for_reader |= made and policy.constraints.low_rank

    def _merged_by_reader(self) -> bool:
        """Returns whether factors were merged since the last step on any process; merges them on all then."""
        policy = self.method.params.policy
        if not policy.constraints.low_rank:
            return False
        merged, policy.merged_for_reader = policy.merged_for_reader, False
        merged = any(flag for (flag,) in self._together.processes.gather([float(merged)]))
        if merged:
            policy.merge_factors()
        return merged
