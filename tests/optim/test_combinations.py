"""Every method with every restore policy, noise and rounding on small models of many kinds: refused, or right."""

from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

import zo
from tests.support.tiny_models import llama, opt, seeded
from zo.library.methods import METHODS
from zo.noise import NOISES
from zo.weights.constraints import RESTORE_POLICIES
from zo.weights.executor import Executor
from zo.weights.restore import RestoreError

DRAWS = torch.Generator().manual_seed(0)
TOKENS = torch.randint(5, 300, (4, 7), generator=DRAWS)
IMAGES = torch.randn(6, 3, 8, 8, generator=DRAWS)
ROWS = torch.randn(6, 5, generator=DRAWS)
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2])


class VisionTransformer(nn.Module):
    """A class token and positions belong to no module of their own."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8) / 5)
        self.positions = nn.Parameter(torch.randn(1, 5, 8) / 5)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.layer(x)[:, 0])


class Recurrent(nn.Module):
    """All matrices of a GRU belong to one module."""

    def __init__(self):
        super().__init__()
        self.embedding, self.gru, self.head = nn.Embedding(300, 6), nn.GRU(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.gru(self.embedding(x).transpose(0, 1))[0][-1])


def linear():
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3))


def convolution():
    first = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4), nn.ReLU()
    return nn.Sequential(*first, nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(144, 3))


def lora():
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(opt(), peft.LoraConfig(r=2, task_type="CAUSAL_LM"))


def of_tokens(model):
    return model(input_ids=TOKENS, labels=TOKENS).loss


def of_classes(inputs, model):
    given = inputs if inputs.dtype == torch.long else inputs.to(next(model.parameters()).dtype)
    return nn.functional.cross_entropy(model(given).float(), CLASSES[: len(inputs)])


IMAGE, ROW, TEXT = (partial(of_classes, x) for x in (IMAGES, ROWS, TOKENS))
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SUBJECTS = {
    "linear": (linear, ROW, F32, "nearest"),
    "linear, fp16": (linear, ROW, F16, "nearest"),
    "vision transformer": (VisionTransformer, IMAGE, F32, "nearest"),
    "convolution": (convolution, IMAGE, F32, "nearest"),
    "convolution, compensated": (convolution, IMAGE, BF16, "compensated"),
    "recurrent": (Recurrent, TEXT, F32, "nearest"),
    "opt, tied": (opt, of_tokens, F32, "nearest"),
    "opt, stochastic": (opt, of_tokens, BF16, "stochastic"),
    "llama": (llama, of_tokens, F32, "nearest"),
    "llama, bf16": (llama, of_tokens, BF16, "nearest"),
    "lora": (lora, of_tokens, F32, "nearest"),
}
SETTINGS = {"hizoo": {"hessian_smooth": 1e-3}, "lozo": {"interval": 1}, "mezo": {"n": 2}}
SETTINGS |= {"mezo_adam": {"state_dtype": "float32"}}  # float16 moments underflow
REFUSALS = (ValueError, TypeError, RestoreError)


def weights_of(optimizer):
    return [tensor.clone() for tensor in optimizer.method.params.gathered(collect=False)[1]]


def problem_of(subject, name, restore, noise, record):
    """Returns None of a combination that is right, its sentence in parentheses if it is refused, or what is wrong."""
    make, loss_of, dtype, rounding = SUBJECTS[subject]
    model, again = seeded(make).to(dtype), seeded(make).to(dtype)
    record.unlink(missing_ok=True)
    how = {"restore": restore, "noise": noise, "rounding": rounding, "eps": 1e-2, "seed": 3}
    how |= SETTINGS.get(name, {})
    try:
        optimizer = zo.optimizer(name, model, 1e-3, record=record, **how)
        start = weights_of(optimizer)
        losses = [optimizer.step(lambda: loss_of(model)) for _ in range(2)]
    except REFUSALS as error:
        said = str(error)
        return f"({said})" if len(said.splitlines()) == 1 and ":" in said else f"says {said!r}"
    after = weights_of(optimizer)
    if len(start) == len(after) and all(map(torch.equal, start, after)):
        return f"no step moves the weights; losses {losses}"
    with torch.no_grad():
        method = optimizer.method
        method.estimate(Executor.of(partial(loss_of, model)))
    optimizer.method.params.policy.finish_restore()
    exact, unit = RESTORE_POLICIES[restore].exact, torch.finfo(dtype).eps
    for was, now in zip(after, weights_of(optimizer), strict=True):
        if not torch.equal(was, now) if exact else (was - now).abs().max() > 16 * unit * 2:
            return "an estimate leaves other weights"
    replayed = weights_of(zo.replay(again, record))
    if not all(map(torch.equal, after, replayed)):
        return "a replay has other bits"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_combination_is_refused_in_a_sentence_or_steps_goes_back_and_replays(name, tmp_path):
    combinations = product(SUBJECTS, RESTORE_POLICIES, NOISES)
    found = {of: problem_of(of[0], name, *of[1:], tmp_path / "run.zo") for of in combinations}
    wrong = {of: said for of, said in found.items() if said is not None and said[0] != "("}
    assert not wrong
