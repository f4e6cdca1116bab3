"""Memory and time of a run in one line: from its configuration alone, or from the times of its first steps.

From the configuration no weights are loaded and nothing is measured. Memory is then that of a step with
`restore=subtract noise=torch`; `noise=philox` needs less. Times are those of an H200.
"""

import copy
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from zo.config import RunConfig, presets
from zo.config.checks import problems
from zo.lm.adapters.config import ADAPTERS, PeftAdapter
from zo.lm.baselines import BASELINES
from zo.lm.config import ModelError
from zo.lm.load import random_weights
from zo.lm.scoring.candidates import STATES, CandidateScorer, length_batches
from zo.optim import OPTIMIZERS, MethodConfig
from zo.run import memory
from zo.run.assembly import Session
from zo.run.hours import StepTime, kind_of, step_times
from zo.run.store.directory import directory_of
from zo.run.store.rows import evaluates
from zo.tasks import package_files
from zo.weights.constraints import RESTORE_POLICIES

STORED = {"int8": 1.0, "int4": 0.5, "nf4": 0.5}  # Bytes of a quantised weight

MS_PER_GB, WITH_STATE, TIMED_GB = 10.6, 1.37, 1.0
"""Of a forward pass, per GB of weights; times that with state or low rank; from so many GB on, measured at 5 to 26."""

OFTEN = 0.5  # Share of the evaluations that score the test split, too: those with a new best


CUDA_GB = 1.0  # Of the CUDA context and what is in no tensor

CHANGES = (
    "eval_tokens=2048",
    "precision=bf16",
    "precision=bf16 eval_tokens=2048",
    "optimizer=mezo",
    "adapter=lora",
    "adapter=lora precision=bf16",
    "adapter=lora model.quantization=int8",
    "adapter=lora model.quantization=int8 precision=bf16 eval_tokens=2048",
    "adapter=lora model.quantization=int4 precision=bf16 eval_tokens=2048",
    "model.offload=cpu precision=bf16 precision.restore=streamed eval_tokens=2048",
)
"""What makes a run smaller, as typed, the smaller change first."""

BY_HAND = (
    "without a network write a directory's config.json by hand, as"
    ' {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,'
    ' "num_attention_heads": 32, "vocab_size": 32000}, and give model.path=DIRECTORY'
)


class Sizes(NamedTuple):
    """Numbers of a model: its weights, those of its largest tensor and block, its width and its vocabulary."""

    total: int
    largest: int
    block: int
    hidden: int
    vocabulary: int


_SIZES: dict[str, Sizes] = {}


def sizes_of(cfg: RunConfig) -> Sizes:
    """Returns a model's numbers, by its config.json, or by conf/model for a path there. May raise ModelError."""
    model = cfg.model
    if model.weights == "pretrained" and not model.gguf_file:
        here = False
        with suppress(FileNotFoundError):  # a pip package that is not installed
            here = Path(package_files.resolve(model.path), "config.json").is_file()
        if here or model.path != presets.own_path(model.name):
            model = replace(model, architecture={})
    if (key := repr(model)) not in _SIZES:
        found = random_weights(model, torch.float32, torch.device("meta")).model
        counts = [p.numel() for p in found.parameters()]
        lists = [module for module in found.modules() if isinstance(module, torch.nn.ModuleList)]
        blocks = [sum(p.numel() for p in block.parameters()) for of in lists for block in of]
        text = found.config.get_text_config()
        width, vocabulary = getattr(text, "hidden_size", 0), text.vocab_size
        _SIZES[key] = Sizes(sum(counts), max(counts), max(blocks, default=0), width, vocabulary)
    return _SIZES[key]


def step_gb(method: MethodConfig, size: int, counts: Sequence[int]) -> dict[str, float]:
    """Returns GB of `weights`, `state` and `scratch`, for weights of `size` bytes and the first two of `Sizes`."""
    total, largest = counts
    each = 4 if getattr(method, "state_dtype", "param") == "float32" else size
    state = method.state_tensors * each
    scratch = (4 if size == 4 else 8) + 8 * bool(state) if method.replays else 0
    parts = {"weights": total * size, "state": total * state, "scratch": largest * scratch}
    return {name: count / 1e9 for name, count in parts.items()}


def step_ms(method: MethodConfig, weights_gb: float) -> float:
    """Returns the time of a step on an H200."""
    stateful = method.replays and method.state_tensors > 0
    slower = WITH_STATE if stateful or method.low_rank else 1.0
    return MS_PER_GB * weights_gb * method.passes_per_step * slower


def formula_ms(cfg: RunConfig) -> float | None:
    """Returns the time of a step on an H200; None for weights of a size or form that was not timed."""
    weights_gb = sizes_of(cfg).total * getattr(torch, cfg.precision.dtype).itemsize / 1e9
    if weights_gb < TIMED_GB or cfg.model.quantization or cfg.model.offload:
        return None
    return step_ms(cfg.optimizer, weights_gb)


def needed_gb(cfg: RunConfig) -> dict[str, float]:
    """Returns GB of the parts of a run's memory, but for activations; logits are the most that there can be."""
    (total, largest, block, _, vocabulary) = sizes_of(cfg)
    size = getattr(torch, cfg.precision.dtype).itemsize
    parts = step_gb(cfg.optimizer, size, (total, largest))
    if RESTORE_POLICIES[cfg.precision.restore].copies:
        parts["copy"] = parts["weights"]
    if isinstance(cfg.adapter, PeftAdapter):
        parts = {"weights": parts["weights"]}
    if (form := cfg.model.quantization) is not None:
        parts["weights"] = ((total - largest) * STORED[form] + largest * size) / 1e9
    if cfg.model.offload is not None:
        parts["weights"] = 2 * max(largest, block) * size / 1e9
    if cfg.objective.of(cfg.task) in ("lm", "completion") and cfg.task.kind == "completion":
        tokens = max(cfg.eval_tokens, cfg.batch_size * cfg.task.max_length)
        each = size + (4 if cfg.precision.loss == "float32" else size)
        parts["logits at most"] = tokens * vocabulary * each / 1e9
    return parts


def estimate(cfg: RunConfig, step: StepTime | None, gpu: float | None = None) -> str:
    """Returns a run's memory and time in one line, and whether it fits into so many GiB."""
    parts = needed_gb(cfg)
    said = ", ".join(f"{name} {gb:.3g}" for name, gb in parts.items() if gb)
    beside = f"and the activations of {cfg.eval_tokens:,} tokens"
    if not cfg.optimizer.replays and cfg.optimizer.name not in BASELINES:
        beside = "plus stored activations, not counted"
    needs = f"about {sum(parts.values()):.3g} GB ({said}) {beside}"
    if gpu is not None:
        needs += f"; {_verdict(cfg, gpu)}"
    if step is None:
        return f"{needs}; no time is known"
    each = step.ms / 1000
    takes = f"{shown(cfg.steps * each)}: {cfg.steps:,} steps of {shown(each)}, {step.source}"
    return f"{needs}; {takes}, without evaluations"


def _left_gb(cfg: RunConfig, gpu: float) -> float:
    """Returns how much of a GPU's GiB a run leaves, GB; less than 0 if it does not fit."""
    size = getattr(torch, cfg.precision.dtype).itemsize
    states = STATES * sizes_of(cfg).hidden * size * cfg.eval_tokens / 1e9
    return gpu * memory.GIB / 1e9 - sum(needed_gb(cfg).values()) - states - CUDA_GB


def _verdict(cfg: RunConfig, gpu: float) -> str:
    """Returns whether a run fits, by how much, and which changes make it fit."""
    left = _left_gb(cfg, gpu)
    with_ = f"with activations of a forward pass and {CUDA_GB:g} GB of CUDA"
    if left >= 0:
        return f"fits into {gpu:g} GiB, {left:.3g} GB to spare {with_}"
    fitting = []
    for change in CHANGES:
        changed = _changed(cfg, change.split())
        if changed is not None and _left_gb(changed, gpu) >= 0:
            fitting.append(change)
    fitting = [of for of in fitting if not any({*o.split()} < {*of.split()} for o in fitting)]
    what = f"it would with {', or with '.join(fitting)}" if fitting else "no change here is enough"
    return f"does not fit into {gpu:g} GiB, {-left:.3g} GB too much {with_}; {what}"


def _changed(cfg: RunConfig, words: Iterable[str]) -> RunConfig | None:
    """Returns a run with settings as typed; None if they are there already or do not go together."""
    cfg, before = copy.deepcopy(cfg), cfg
    for key, _, value in (word.partition("=") for word in words):
        if key == "optimizer":
            cfg.optimizer = OPTIMIZERS[value].config()
        elif key == "adapter":
            cfg.adapter = ADAPTERS[value]()
        elif key == "precision":
            cfg.precision.dtype = "bfloat16"
        else:
            group, _, name = key.rpartition(".")
            node = getattr(cfg, group) if group else cfg
            setattr(node, name, int(value) if value.isdecimal() else value)
    return None if cfg == before or problems(cfg) else cfg


def show(runs: Iterable[RunConfig], gpu: float | None = None) -> int:
    """Prints the estimate of each model, precision and method; returns the exit status."""
    every = list(runs)
    named = {(r.model.name, r.precision.name, r.adapter.name, r.optimizer.name): r for r in every}
    times = step_times([(run, directory_of(run)) for run in every], {})
    try:
        for names, run in named.items():
            said = estimate(run, times[kind_of(run)], gpu)
            print(f"{' '.join(names).replace(' none ', ' ')}: {said}")
    except ModelError as error:
        here = package_files.is_path(run.model.path)
        print(f"{error}{'' if here else f'; {BY_HAND}'}", file=sys.stderr)
        return 2
    return 0


def measured(
    cfg: RunConfig, session: Session, times: Mapping[str, Sequence[float]], made: int
) -> str:
    """Returns memory and time of a run that has `made` steps, in one line; `times` are of some steps, see `Totals`."""
    step, forward, weights = (median(times[kind]) for kind in ("step", "forward", "perturb"))
    left, count, once = cfg.steps - made, cfg.optimizer.forwards_per_step, 0.0
    gib = memory.peak_gib(session.assembly.device)
    parts = f"{count} forward passes of {shown(forward / count)}, passes over the weights {shown(weights)}"
    if (kept := getattr(session.scorer, "kept", None)) is not None:  # they come with new examples
        once = max(0.0, step - forward - weights) * len(session.train) / cfg.batch_size
        step = forward + weights
        gib += kept.bytes / memory.GIB
        parts += f", after hidden states once, {shown(once)}"
    evaluation = _evaluation_seconds(cfg, session, forward / count)
    evaluations = sum(evaluates(cfg, step) for step in range(made + 1, cfg.steps + 1))
    return (
        f"about {gib:.2g} GiB and {shown(once + left * step + evaluations * evaluation)}: {left:,} steps of "
        f"{shown(step)} ({parts}), {evaluations} evaluation{'s' * (evaluations != 1)} of {shown(evaluation)}"
    )


def _evaluation_seconds(cfg: RunConfig, session: Session, forward: float) -> float:
    """Returns how long an evaluation takes, by its largest batch, or by a forward pass where texts are written."""
    scorer, splits = session.evaluator, (session.validation, session.test)
    if not isinstance(scorer, CandidateScorer):
        validation, test = map(len, splits)
        return forward / cfg.batch_size * (validation + OFTEN * test)
    validation, test = (sum(example.length for example in of) for of in splits)
    examples = [*session.validation, *session.test]
    lengths = [example.length for example in examples]
    batches = length_batches(lengths, cfg.eval_tokens)
    largest = max(batches, key=lambda of: len(of) * lengths[of[-1]])
    chosen = [examples[i] for i in largest]
    for _ in range(1 if scorer.kept is None else 2):  # the first one computes hidden states
        start = time.perf_counter()
        scorer.evaluate(chosen, cfg.eval_tokens)
        seconds = time.perf_counter() - start
    return seconds * (validation + OFTEN * test) / sum(example.length for example in chosen)


def shown(seconds: float) -> str:
    """Returns a time in its unit."""
    units = (("ms", 1e-3, 1.0), ("s", 1, 90), ("min", 60, 5400), ("h", 3600, 1e6))
    for unit, length, most in units:
        if seconds < most:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 86_400:.0f} days"
