"""Closures are called in inference mode, except those that need more than numbers."""

import gc

import pytest
import torch
from torch.autograd import forward_ad

import zo
from tests.support.own_loop import make_model, weights
from tests.support.quadratic import same
from zo.library import inference


def plain(model, kept):
    return model(torch.ones(2, 6))


def keeps_output(model, kept):
    kept[:] = [model(torch.ones(2, 6))]
    return kept[0]


def collects_garbage(model, kept):
    gc.collect()
    return model(torch.ones(2, 6))


def makes_once(model, kept):
    kept[:] = kept or [torch.full((2, 6), 2.0)]
    return model(kept[0])


def differentiates(model, kept):
    with torch.enable_grad():
        x = torch.ones(2, 6, requires_grad=True)
        out = model(x).square()
        return out + torch.autograd.grad(out.sum(), x)[0].sum()


def jacobian(model, kept):
    """As `torch.autograd.functional`'s, which is 0 in inference mode."""
    x = torch.ones(2, 6)
    slope = torch.autograd.functional.jacobian(lambda x: model(x).square().sum(), x)
    assert slope.any()
    return model(x) + slope.mean()


def tangent(model, kept):
    with forward_ad.dual_level():
        out = model(forward_ad.make_dual(torch.ones(2, 6), torch.ones(2, 6)))
        return torch.add(*forward_ad.unpack_dual(out))


def jacobian_later(model, kept):
    return (jacobian if model.step else plain)(model, kept)


def differentiates_later(model, kept):
    return (differentiates if model.step else plain)(model, kept)


@pytest.mark.parametrize(
    ("output", "inside"),
    [
        (plain, True),
        (makes_once, True),
        (keeps_output, False),
        (collects_garbage, False),
        (differentiates, False),
        (differentiates_later, False),
        (jacobian, False),
        (jacobian_later, False),
        (tangent, False),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # of torch's own forward AD
@pytest.mark.parametrize("checks", [True, False])
def test_a_closure_is_called_in_inference_mode_only_if_it_keeps_and_differentiates_nothing(
    output, inside, checks, compiled, monkeypatch
):
    monkeypatch.setattr(inference, "has_compiled", lambda: compiled)

    def trained(outside):
        model, kept, modes = make_model(), [], []

        def loss():
            modes.append(torch.is_inference_mode_enabled())
            if outside:
                with torch.inference_mode(False), torch.no_grad():
                    return output(model, kept).square().mean()
            return output(model, kept).square().mean()

        optimizer = zo.MeZO(model, 1e-2, eps=1e-2, seed=3, check_closure=checks)
        losses = []
        for model.step in range(3):
            losses.append(optimizer.step(loss))
        # what is kept serves a backward pass
        (model(torch.ones(2, 6)).sum() * sum([t.mean() for t in kept], 1.0)).backward()
        assert gc.isenabled()
        return [*losses, *weights(model)], modes

    found, modes = trained(outside=False)
    assert modes[-2:] == [inside and not compiled] * 2
    assert not modes[0]
    assert same(found, trained(outside=True)[0])


@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError, KeyError])
def test_an_error_of_the_closure_is_its_own(error):
    model = make_model()
    optimizer = zo.MeZO(model, 1e-2, eps=1e-2, seed=4, restore="snapshot", check_closure=False)
    calls = []

    def loss():
        calls.append(len(calls))
        if len(calls) > 1:
            raise error("of the closure")
        return model(torch.ones(2, 6)).mean()

    with pytest.raises(error, match="of the closure"):
        optimizer.step(loss)
    assert gc.isenabled()
    assert same(weights(model), weights(make_model()))


@pytest.mark.parametrize("restore", ["merged", "snapshot", "streamed"])
def test_an_error_that_is_not_torchs_refusal_ends_the_step(restore):
    """As a time limit's, raised by a signal's handler; a second call would hide it. Torch's switch is its own after."""
    model, calls = make_model(), []
    switch = torch._C._set_grad_enabled

    def loss():
        calls.append(torch.is_inference_mode_enabled())
        if len(calls) == 6:
            raise RuntimeError("time is up")
        return model(torch.ones(2, 6)).square().mean()

    optimizer = zo.MeZO(model, 1e-2, restore=restore, check_closure=False)
    for _ in range(2):
        optimizer.step(loss)
    with pytest.raises(RuntimeError, match="time is up"):
        optimizer.step(loss)
    assert len(calls) == 6
    assert calls[-1]
    assert torch._C._set_grad_enabled is switch
