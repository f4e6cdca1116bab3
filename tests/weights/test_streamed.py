"""Streamed probes measure what snapshot's measure, bit for bit, and θ stays where it is while they do."""

import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import zo
from tests.support.quadratic import Interrupted, same
from tests.support.tiny_models import roberta
from tests.support.tiny_runs import TinyRun
from zo.noise import NoiseKey
from zo.weights import updates
from zo.weights.directions import Gaussian
from zo.weights.executor import Executor
from zo.weights.restore import RestoreError, streamed
from zo.weights.space import ParameterSpace

Z = [Gaussian(NoiseKey(seed=1, stream=0, step=0, direction=i)) for i in range(2)]


def as_it_was(model: nn.Module) -> list[tuple]:
    """What must be the same objects again whenever nobody probes."""
    own = [(m, k, id(p)) for m in model.modules() for k, p in m._parameters.items()]
    return own + [(m, "forward", m.__dict__.get("forward")) for m in model.modules()]


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_theta_never_moves_and_an_exception_at_any_depth_leaves_the_model_as_it_was(
    where, tmp_path
):
    """Before and after the forward of each module that holds weights, also of those inside another one."""
    model = roberta()
    if where == "disk":
        zo.offload(model, "disk", device="cpu", directory=tmp_path)
    run = TinyRun(model, "mezo", "streamed", eps=1e-3)
    twin = TinyRun(roberta(), "mezo", "snapshot", eps=1e-3)
    before, theta, seen = as_it_was(model), run.weights(), []

    def fail(*_) -> None:
        seen.append(where == "disk" or same(run.weights(), theta))
        raise Interrupted

    for module in [
        m for m in model.modules() if any(p is not None for p in m._parameters.values())
    ]:
        for register in (module.register_forward_pre_hook, module.register_forward_hook):
            handle = register(fail)
            with pytest.raises(Interrupted):
                run.optimizer.step(run.loss)
            handle.remove()
            assert as_it_was(model) == before
            assert same(run.weights(), theta)
    assert all(seen)
    for _ in range(2):
        assert run.optimizer.step(run.loss) == twin.optimizer.step(twin.loss)


def test_an_embedding_displaces_the_rows_that_it_reads_and_no_others(monkeypatch):
    table = nn.Embedding(50, 33)
    space = ParameterSpace.of(table, "streamed")
    monkeypatch.setattr(streamed, "SMALL_TABLE", 0)
    monkeypatch.setattr(streamed, "add_to_all_", None)  # which displaces all of them
    with space.policy.excursion() as probe:
        probe.to([(0.3, Z[0])])
        assert table(torch.tensor([[3, 49, 3], [0, 17, 18]])).shape == (2, 3, 33)


class Returning(nn.Module):
    """Returns views of its weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self) -> Any:
        return {"first": self.weight[:2], "more": [self.weight[2:], (self.weight,)]}


class Outer(nn.Module):
    """Holds weights, and reads them before and after the call of modules that hold some of them, too.

    It reads what one returned after the next was called, which takes the same place in the buffer. Somebody gave one
    of them another forward.
    """

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 5))
        self.bias = nn.Parameter(torch.randn(5))
        self.inner, self.shared, self.returning = nn.Linear(5, 5), nn.Linear(5, 5), Returning()
        self.inner.bias, self.again, own = self.bias, self.shared, self.shared.forward
        self.shared.forward = lambda x: 2 * own(x)

    def forward(self, x: Tensor) -> Tensor:
        views, first = self.returning(), x @ self.weight + self.bias
        within = self.again(self.shared(self.inner(first)))
        return torch.cat([within @ self.weight - self.bias, *tree_flatten(views)[0]])


def displaced(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """What the model returns displaced, by snapshot and streamed."""
    outputs = []
    for restore in ("snapshot", "streamed"):
        space = ParameterSpace.of(model, restore)
        with torch.inference_mode(), space.policy.excursion() as probe:
            probe.to([(0.5, Z[0]), (0.25, Z[1])])
            outputs.append(model(*inputs))
    return outputs


def test_modules_of_unusual_kinds_compute_displaced_and_are_as_they_were(monkeypatch):
    """The buffer holds Outer's two and, inside of it, the larger of inner's and shared's, in steps of 64 bytes."""
    monkeypatch.setattr(streamed, "AHEAD", 0)
    model, x = Outer(), torch.randn(3, 5)
    before, plain = as_it_was(model), model(x)
    expected, found = displaced(model, x)
    assert torch.equal(found, expected)
    assert not torch.equal(found, plain)
    assert as_it_was(model) == before
    assert ParameterSpace.of(model, "streamed").policy.bytes == 128 + 64 + max(128, 128 + 64)


READS = {
    "compares": lambda p: torch.equal(p, p),
    "in a list": lambda p: torch.cat([torch.ones(5), p]),
    "writes": lambda p: setattr(p, "data", torch.ones(5)),
}


@pytest.mark.parametrize("read", READS)
def test_every_read_during_a_probe_names_the_weight_and_its_metadata_are_free(read):
    model = nn.Sequential(nn.Linear(3, 5))
    space, bias = ParameterSpace.of(model, "streamed"), model[0].bias
    with space.policy.excursion() as probe:
        probe.to([(0.5, Z[0])])
        bias.grad, bias.requires_grad = None, bias.requires_grad
        assert bias.shape == (5,)
        with pytest.raises(RestoreError, match=r"0\.bias is read outside of the call"):
            READS[read](bias)


class Keeping(nn.Module):
    """Keeps a view of its weight for later."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.weight[:2]
        return x @ self.weight.T


class Block(nn.Module):
    """Holds a weight of its own, one in a layer, one in an embedding, and one that all blocks share."""

    def __init__(self, shared: nn.Module):
        super().__init__()
        self.scale, self.layer, self.shared = nn.Parameter(torch.randn(5)), nn.Linear(5, 5), shared
        self.table = nn.Embedding(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(len(x))
        return self.shared(x @ self.layer.weight * self.scale + self.layer(x) + self.table(at))


class Blocks(nn.Module):
    """Calls blocks, and one's layer by itself."""

    def __init__(self):
        super().__init__()
        shared = nn.Linear(5, 5)
        self.blocks = nn.ModuleList(Block(shared) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.blocks[1].layer(x)


def test_a_block_is_displaced_by_one_pass_and_what_is_called_outside_of_it_by_its_own(monkeypatch):
    """A block may read what its layers hold; an embedding in it still displaces the rows that it looks up."""
    model, passes, write = Blocks(), [], streamed.add_to_all_

    def counted(written, thetas, *rest):
        passes.append(len(thetas))
        write(written, thetas, *rest)

    monkeypatch.setattr(streamed, "add_to_all_", counted)
    monkeypatch.setattr(streamed, "SMALL_TABLE", 0)
    monkeypatch.setattr(streamed, "AHEAD", 0)
    expected, found = displaced(model, torch.randn(4, 5))
    assert torch.equal(found, expected)
    # A block has its scale and layer, and the first one the layer that all share, which others call from outside.
    assert passes == [5, 3, 2, 3, 2, 2]
    own = 64 + 128 + 64 + 128 + 64 + 192
    assert ParameterSpace.of(model, "streamed").policy.bytes == own


def test_small_units_that_followed_one_another_are_displaced_by_one_pass(monkeypatch):
    """What is called in another order, or not at all, is displaced by the next point all the same."""
    model, x = nn.Sequential(*(nn.Linear(5, 5) for _ in range(3))), torch.randn(4, 5)
    passes, write = [], streamed.add_to_all_

    def counted(written, thetas, *rest):
        passes.append(len(thetas))
        write(written, thetas, *rest)

    monkeypatch.setattr(streamed, "add_to_all_", counted)
    a, b, c = model
    calls = [model, model, a, lambda x: c(b(x)), lambda x: b(c(x)), lambda x: c(a(b(a(x))))]
    assert outputs_of(model, "streamed", calls, x) == outputs_of(model, "snapshot", calls, x)
    assert passes == [2, 2, 2, 6, 6, 4, 2, 4, 6, 4, 6]


class Scaled(nn.Module):
    """Reads its weight after the call of an embedding, which needs memory meanwhile."""

    def __init__(self):
        super().__init__()
        self.scale, self.table = nn.Parameter(torch.ones(5)), nn.Embedding(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.long().abs()) * self.scale


def test_what_a_unit_calls_leaves_its_memory_alone_also_where_that_was_filled_before():
    model, x = nn.Sequential(nn.Linear(5, 5), Scaled()), torch.randn(4, 5)
    calls = [model] * 3
    assert outputs_of(model, "streamed", calls, x) == outputs_of(model, "snapshot", calls, x)


def outputs_of(model: nn.Module, restore: str, calls: list, x: Tensor) -> list:
    """What calls return, each at a point of its own."""
    with torch.no_grad(), ParameterSpace.of(model, restore).policy.excursion() as probe:
        found = []
        for i, call in enumerate(calls):
            probe.to([(0.5 + i, Z[i % 2])])
            found.append(call(x).tolist())
    return found


class Own(partial):
    def __len__(self) -> int:
        """Has it count as false."""
        return 0


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_forward_that_changes_between_steps_is_called():
    """A module's own, its class's, and that of another class."""
    layer, x = nn.Linear(5, 5), torch.randn(4, 5)
    policies = [ParameterSpace.of(layer, restore).policy for restore in ("snapshot", "streamed")]

    def compare() -> Tensor:
        found = []
        for policy in policies:
            with torch.no_grad(), policy.excursion() as probe:
                probe.to([(0.5, Z[0])])
                found.append(layer(x))
        assert torch.equal(*found)
        return found[0]

    plain = compare()
    layer.__class__ = Twice
    assert torch.equal(compare(), 2 * plain)
    layer.forward = own = Own(lambda x: 3 * nn.Linear.forward(layer, x))
    assert torch.equal(compare(), 3 * plain)
    assert vars(layer)["forward"] is own
    del layer.forward
    assert torch.equal(compare(), 2 * plain)


@torch.no_grad()
def test_a_layer_that_is_called_by_itself_later_is_displaced_then():
    """The first probe sees only blocks' calls."""

    def losses(restore: str) -> list[float]:
        torch.manual_seed(0)
        blocks, x = nn.ModuleList(nn.Sequential(nn.Linear(5, 5)) for _ in range(2)), torch.ones(5)
        space = ParameterSpace.of(nn.ModuleDict({"blocks": blocks}), restore)
        within = [lambda: blocks[1](blocks[0](x)).sum(), lambda: blocks[0][0](blocks[1](x)).sum()]
        points = [[(0.5, Z[0])], [(-0.5, Z[0])]]
        return [float(y) for of in within * 2 for y in space.measure(Executor.of(of), [points])]

    assert losses("streamed") == losses("snapshot")


@pytest.mark.parametrize(("of", "within"), [(slice(2), False), (slice(2), True), (..., True)])
def test_a_weight_or_a_view_of_it_that_stays_is_refused_when_its_layer_or_block_returns(of, within):
    class Within(Keeping):
        def forward(self, x):
            vars(self)["kept"] = self.weight if of is ... else self.weight[of]
            return x @ self.weight.T

    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Sequential(Within(), nn.Linear(6, 5)) if within else Within()])
    model.forward = lambda x: model.blocks[0](x)
    with pytest.raises(RestoreError, match=r"blocks\.0 \(\w+\) keeps a view of") as caught:
        displaced(model, torch.ones(5))
    assert caught.value.in_suite.endswith("; use precision.restore=snapshot")


class Failing(Keeping):
    """Keeps an exception, whose traceback holds the frame that has a view of the weight."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            self.fail(self.weight[:2])
        except ArithmeticError as error:
            self.kept = error
        return x @ self.weight.T

    def fail(self, view: Tensor) -> None:
        raise ArithmeticError


def test_frames_that_stay_alive_refuse_nothing(monkeypatch):
    """Of a module that keeps an exception, and of the passes: numba keeps one when it compiles."""
    kept, plain = [], updates.add_

    def add_(out, *args):
        kept.append((out, sys._getframe()))
        return plain(out, *args)

    monkeypatch.setattr(updates, "add_", add_)
    expected, found = displaced(nn.Sequential(Failing(), nn.Linear(6, 6)), torch.ones(5))
    assert kept
    assert torch.equal(found, expected)


def test_a_weight_that_stays_is_found_also_where_a_frame_had_kept_one_before():
    """The frame ends when the layer begins to keep its weight: there are as many references as before."""
    errors, kept = [], []

    class Layer(nn.Linear):
        does = "compute"

        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight
            if self.does == "fail":
                raise ArithmeticError
            if self.does == "keep":
                errors.clear()
                kept.append(weight)
            return super().forward(x)

    model = nn.Sequential(Layer(5, 5), nn.Linear(5, 5), nn.Linear(5, 5))
    a, _, c = model
    points = [("compute", model)] * 2 + [("fail", a)] + [("compute", nn.Sequential(a, c))] * 2
    with torch.no_grad(), ParameterSpace.of(model, "streamed").policy.excursion() as probe:
        for a.does, call in points:
            probe.to([(0.5, Z[0])])
            try:
                call(torch.ones(5))
            except ArithmeticError as error:
                errors.append(error)
        a.does = "keep"
        with pytest.raises(RestoreError, match="keeps a view"):
            model(torch.ones(5))


@pytest.mark.slow
@pytest.mark.parametrize("part", [False, True])
def test_a_compiled_model_is_displaced_as_it_is_uncompiled(part):
    model, given = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), torch.ones(2, 3)
    expected, _ = displaced(model, given)
    if part:
        model[0].compile(backend="eager")
    else:
        model = torch.compile(model, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(displaced(model, given)[1], expected)


def test_what_cannot_be_displaced_is_refused():
    with pytest.raises(ValueError, match="the tensors' model is needed"):
        ParameterSpace([("w", torch.zeros(3))], "streamed")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[0].weight.data.T)
    with pytest.raises(ValueError, match=r"1\.weight is a view of another weight"):
        ParameterSpace.of(model, "streamed")
    with pytest.raises(ValueError, match="no module of the model holds w"):
        ParameterSpace([("w", torch.zeros(3))], "streamed", model=model)
