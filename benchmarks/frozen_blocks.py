"""Times MeZO's step and an evaluation where the last blocks train: all blocks computed, frozen ones once, or kept.

    python -m benchmarks.frozen_blocks [--trained 1 2 4 8 16 30] [--rounds 5] [--out DIR]
    make bench-frozen BENCH="--out results/measured/benchmarks"

The model has SmolLM2-135M's shape and random weights; the texts are Rotten Tomatoes reviews, 16 in a mini-batch. One
thread. The three ways of one number of blocks are timed in turns on one model, in processor seconds, which depend
little on what else the machine does. The times are medians. Hidden states that are kept are there before.

Written: frozen_blocks.csv, frozen_blocks.md and frozen_blocks.png.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from analysis.paper.names import variant_name
from analysis.report.figures.drawing import Figure, Panel, Series
from analysis.report.figures.vega import on_paper, render
from analysis.report.table import Column, Table, console, markdown, show
from zo.config import RunConfig, command_line, register
from zo.run.assembly import Session
from zo.run.provenance import provenance, sentence
from zo.run.reuse import begin_reuse
from zo.tasks.batches import batch_indices

BLOCKS = 30
TRAINED = [1, 2, 4, 8, 16, BLOCKS]
BATCH = 16
RUN = [
    *("model=smollm2-135m", "model.weights=random", "task=rotten_tomatoes", "task.train_size=64"),
    *("task.validation_size=32", "task.test_size=16", f"batch_size={BATCH}", "threads=1"),
    *("optimizer=mezo", "lr=1e-6", "precision.noise=philox"),
]
WAYS = {"every": "every time", "once": "once per mini-batch", "kept": "kept per example"}
"""Column -> how often frozen blocks are computed."""

PARTS = {"step": ("every", "once", "kept"), "evaluation": ("every", "kept")}
"""What is timed, and in which ways: an evaluation has one forward pass of every text."""

COLUMNS: dict[str, Column] = {
    "blocks trained": "trained",
    **{f"{part}, {WAYS[way]}": (f"{part} {way}", ".3f") for part in PARTS for way in PARTS[part]},
    **{
        f"{part} × faster, {WAYS[way]}": (f"{part} faster {way}", ".2f")
        for part, way in (("step", "once"), ("step", "kept"), ("evaluation", "kept"))
    },
}


def configured(trained: int) -> RunConfig:
    """Returns a run that trains the last blocks, or with all of them everything."""
    some = ["adapter=layers", f"adapter.layers=last:{trained}"] if trained < BLOCKS else []
    return command_line.runs([*RUN, *some])[0]


def ways(cfg: RunConfig, session: Session) -> dict[str, Callable[[], None]]:
    """Returns what makes a session compute in each way; where nothing is frozen, all are one."""
    scorer: Any = session.scorer
    prefix = session.assembly.params.prefix
    assert prefix is not None
    begin_reuse(cfg, session)
    kept = scorer.kept
    scorer.keep(None)
    batch = scorer.collate(session.train[:BATCH])
    prefix.prove(lambda: float(scorer.loss(batch)))

    def every() -> None:
        scorer.keep(None)
        prefix.leave("compared")

    def once() -> None:
        scorer.keep(None)
        prefix.why_not = None

    def keeps() -> None:
        scorer.keep(kept)

    keeps()
    scorer.collate(session.train)  # computes what is kept
    scorer.evaluate(session.validation, cfg.eval_tokens)
    return {"every": every, "once": once, "kept": keeps}


def measured(trained: int, rounds: int) -> dict[str, Any]:
    """Returns a row of the table."""
    cfg = configured(trained)
    session = Session.open(cfg)
    found: list[dict[str, float]] = []
    chosen = ways(cfg, session)
    for number in range(rounds + 1):
        row: dict[str, float] = {}
        indices = batch_indices(len(session.train), BATCH, cfg.seed, number)
        examples = [session.train[i] for i in indices]
        for way, begin in chosen.items():
            begin()
            step, evaluate = session.assembly.optimizer.step, session.evaluator.evaluate
            row[f"step {way}"] = _seconds(lambda: step(session.loss_of(examples)))  # noqa: B023
            if way in PARTS["evaluation"]:
                row[f"evaluation {way}"] = _seconds(
                    lambda: evaluate(session.validation, cfg.eval_tokens)  # noqa: B023
                )
        found.append(row)
    medians = pd.DataFrame(found[1:]).median()  # the first round allocates and compiles
    faster = {
        f"{part} faster {way}": medians[f"{part} every"] / medians[f"{part} {way}"]
        for part, (_, *others) in PARTS.items()
        for way in others
    }
    return {"trained": trained, **medians, **faster}


def _seconds(call: Callable[[], object]) -> float:
    """Returns the processor time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Draws the times of a step and of an evaluation over the number of trained blocks."""
    panels = []
    for part, ways in PARTS.items():
        named = [
            (way, variant_name("way", [*WAYS].index(way), len(WAYS), WAYS[way])) for way in ways
        ]
        series = [Series(name, rows["trained"], rows[f"{part} {way}"], way) for way, name in named]
        top = 1.05 * float(max(max(one.y) for one in series))
        panels.append(Panel(part, "blocks that train, of 30", "seconds", series, ylim=(0.0, top)))
    render(on_paper(Figure(path.stem, "frozen blocks computed", panels, columns=2)), path)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures; prints and writes the table and the figure."""
    raw = argparse.RawDescriptionHelpFormatter
    name = "python -m benchmarks.frozen_blocks"
    parser = argparse.ArgumentParser(name, description=__doc__, formatter_class=raw)
    parser.add_argument("--trained", nargs="+", type=int, default=TRAINED)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/local/benchmarks"))
    args = parser.parse_args(argv)
    register()
    rows = pd.DataFrame(list(_rows(args.trained, args.rounds)))
    made = provenance(torch.device("cpu"))
    caption = (
        f"{made['device']}, one thread; SmolLM2-135M's shape, float32, {BATCH} reviews in a mini-batch, 32 in an"
        f" evaluation; `merged`, `philox`; processor seconds, medians of {args.rounds} rounds; {sentence(made)}"
    )
    title = "MeZO with frozen blocks"
    table = Table.of(title, rows.to_dict("records"), COLUMNS, names=1, caption=[caption])
    show(table, console(200))
    args.out.mkdir(parents=True, exist_ok=True)
    rows.to_csv(args.out / "frozen_blocks.csv", index=False, float_format="%.4g")
    (args.out / "frozen_blocks.md").write_text(markdown(table), encoding="utf-8")
    draw(rows, args.out / "frozen_blocks.png")


def _rows(trained: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
    for count in trained:
        yield measured(count, rounds)


if __name__ == "__main__":
    main()
