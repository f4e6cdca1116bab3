"""LoRA against all parameters, and over quantised weights: validation loss, time of a step, memory.

    python -m benchmarks.adapters                        # SmolLM2-135M, 200 steps: hours on a CPU
    python -m benchmarks.adapters --steps 20 --shown     # shows what has been run

Each case is a run of train.py in a process of its own. A run that was interrupted goes on; one that has ended returns
at once. Table and picture go to results/local/adapters.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from analysis.report.figures.drawing import Figure, Panel, Series, write
from analysis.report.style import named
from zo import config
from zo.config import command_line
from zo.run.directory import directory_of
from zo.run.inputs import Inputs
from zo.run.rows import read_rows

ROOT = Path(__file__).resolve().parents[1]
Line: TypeAlias = dict[str, Any]
COMMON = (
    *("task=rotten_tomatoes", "task.max_length=64", "patience=null", "eval_every=20"),
    *("precision.noise=philox", "precision.restore=streamed", "threads=1"),
    "tracking.mode=disabled",
)
MODELS = {
    "smollm2-135m": (
        *("model=smollm2-135m", "batch_size=8", "task.train_size=200"),
        *("task.validation_size=64", "task.test_size=64"),
    ),
    "reviews-tiny": ("model=reviews-tiny", "task.validation_size=200", "task.test_size=100"),
}


@dataclass(frozen=True)
class Case:
    """A method and what it trains.

    Attributes:
        words: In the table and the legend.
        look: The method whose colour it has in the picture.
        overrides: Beside COMMON and the model's.
        rates: Model -> learning rates to choose from, by the last validation loss.
    """

    words: str
    look: str
    overrides: tuple[str, ...]
    rates: Mapping[str, tuple[float, ...]]

    @property
    def before(self) -> tuple[str, ...]:
        """The same model without a step."""
        weights = [word for word in self.overrides if word.startswith("model.")]
        return ("optimizer=zero_shot", *weights)


LORA, MEZO, BSZO = ("adapter=lora",), ("optimizer=mezo",), ("optimizer=bszo",)
INT8, INT4 = "model.quantization=int8", "model.quantization=int4"
ALL = {"smollm2-135m": (1e-4,), "reviews-tiny": (3e-4,)}
FEW = {"smollm2-135m": (1e-3,), "reviews-tiny": (3e-2,)}
BSZO_ALL = {"smollm2-135m": (1e-4,), "reviews-tiny": (1e-3,)}
BSZO_FEW = {"smollm2-135m": (1e-2,), "reviews-tiny": (3e-1,)}
CASES = (
    Case("MeZO, all", "mezo", MEZO, ALL),
    Case("MeZO, LoRA", "mezo_adam", (*MEZO, *LORA), FEW),
    Case("MeZO, LoRA, int8", "hizoo", (*MEZO, *LORA, INT8), FEW),
    Case("MeZO, LoRA, int4", "lozo", (*MEZO, *LORA, INT4), FEW),
    Case("BSZO, all", "bszo", BSZO, BSZO_ALL),
    Case("BSZO, LoRA", "bszo_b", (*BSZO, *LORA), BSZO_FEW),
)


def rows_of(overrides: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """Returns the rows of a run, and how many parameters it trains."""
    (run,) = command_line.runs(list(overrides))
    directory = directory_of(run)
    read = Inputs.read_of(directory)
    return pd.DataFrame(read_rows(directory)), read.get("parameters", "")


def line_of(case: Case, model: str, common: Sequence[str]) -> tuple[Line, pd.DataFrame] | None:
    """Returns a line of the table and the rows behind it, at the best rate; None if nothing has been run."""
    before, _ = rows_of([*common, *case.before])
    best: tuple[Line, pd.DataFrame] | None = None
    for lr in case.rates[model]:
        rows, trained = rows_of([*common, *case.overrides, f"lr={lr}"])
        if "eval/val_loss" not in rows:
            continue
        rows = pd.concat([before[:1], rows]).sort_values("step")
        losses = rows["eval/val_loss"].dropna()
        line: Line = {
            "case": case.words,
            "lr": lr,
            "trained": int(trained),
            "steps": int(rows["step"].max()),
            "validation loss before": float(losses.iloc[0]) if len(before) else float("nan"),
            "validation loss after": float(losses.iloc[-1]),
            "step (s)": float(rows["time/step_s"].median()),
            "peak memory (GiB)": float(rows["mem/peak_gib"].max()),
        }
        if best is None or line["validation loss after"] < best[0]["validation loss after"]:
            best = line, rows
    return best


def show(model: str, common: Sequence[str], directory: Path) -> None:
    """Writes table and picture of what has been run."""
    found = [(case, line_of(case, model, common)) for case in CASES]
    frame = pd.DataFrame([of[0] for _, of in found if of is not None])
    directory.mkdir(parents=True, exist_ok=True)
    lines = [list(frame.columns), ["---"] * frame.shape[1], *frame.map(_text).to_numpy()]
    shown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    (directory / f"{model}.md").write_text(shown + "\n", encoding="utf-8")
    panels = []
    for x in ("step", "seconds of steps"):
        series = []
        for case, of in found:
            if of is not None:
                rows = of[1].assign(**{"seconds of steps": of[1]["time/step_s"].fillna(0).cumsum()})
                rows = rows.dropna(subset="eval/val_loss")
                heights = rows["eval/val_loss"].to_numpy(float)
                series.append(
                    Series(named(case.look, case.words), rows[x].to_numpy(float), heights)
                )
        panels.append(Panel("", x, "validation loss (nats)", series))
    title = f"LoRA and quantised weights: {model} on Rotten Tomatoes"
    write(Figure(model, title, panels, columns=2), directory)
    print(shown)


def _text(value: object) -> str:
    """Returns a value as the table shows it."""
    return (
        f"{value:.4g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    parser = argparse.ArgumentParser("python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", default="out/adapters", help="directory of the runs")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "local" / "adapters")
    parser.add_argument("--shown", action="store_true", help="run nothing, show what there is")
    args = parser.parse_args(argv)
    config.register()
    common = [*COMMON, *MODELS[args.model], f"out={args.out}", f"steps={args.steps}"]
    wanted = [list(case.before) for case in CASES]
    for case in CASES:
        rates = ",".join(map(str, case.rates[args.model]))
        wanted.append([*case.overrides, f"lr={rates}"])
    for overrides in [] if args.shown else wanted:
        command = [sys.executable, "train.py", "-m", *common, *overrides]
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return code
    show(args.model, common, args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
