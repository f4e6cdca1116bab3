"""The tables of a sweep: each method of each setting at its chosen learning rate, and every learning rate tried.

Files in DIR/<sweep>/ are table.{csv,md,tex}, grid.{csv,md} and runs.csv; the page shows the same table. The csv
files hold what the runs logged, unrounded, in the units of docs/reference/run-directory.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.frames import Frames
from analysis.logs.run_file import LogError
from analysis.paper.names import LABELS, UNTRAINED, ZERO_SHOT, method_label, uncounted
from analysis.report.markdown import csv, table_texts, write_texts
from analysis.report.table import ABSENT, COLLAPSED, Cell, Column, Row, Table, console, number, show
from analysis.select.cells import (
    EDGE,
    MAJORITY,
    OF_UNIT,
    PLACE,
    notes,
    of_majority,
    over_seeds,
    pending,
    rows_shown,
    shown,
)
from analysis.select.provenance import foot, sources
from analysis.stats.inference import paired_estimates, sign_test, wilson_interval

CAPTION = (
    "lr: the one of best validation accuracy, of equal ones the smaller. Test accuracy: at the step of "
    "best validation accuracy, with its 95 % Wilson interval. Gain and p: against zero-shot on the "
    "same test examples, two-sided exact McNemar test, not corrected for the number of methods. "
    "p, MeZO: the same against MeZO's best setting; of several seeds Student's test of the differences by seed. "
    "Time per step: median. Passes: forward passes of training, without evaluation."
)
SEEDS = "Accuracies: mean ± sample standard deviation over the n finished seeds, without interval and test."
LACKING = "chosen without the runs that have not finished"
BASE = "mezo"
BEST = "→ "
MARKED = f"{BEST}the method's best setting on validation."
NAMES = {"optimizer": "method", "val_mean": "val_accuracy", "test_mean": "test_accuracy"}
"""Column of `over_seeds` -> column of the tables."""
NUMBERS = (
    *("status", "lr", "best_step", "val_accuracy", "val_n", "test_accuracy", "test_n", "test_low"),
    *("test_high", "gain_points", "p_mcnemar", "p_mezo", "best_setting"),
    *("step_ms", "forwards_per_step", "forwards_to_best"),
)
CHOSEN_BY = {"val_macro_f1": "macro_f1", "val_best_loss": "loss"}
OF_TRAINING = ("best_step", "step_ms", "forwards_per_step", "forwards_to_best")
GRID = (
    *("lr", "status", "chosen", "best_step", "val_accuracy", "test_accuracy"),
    *("last_step", "collapse_step", "run_id"),
)


def write_tables(cells: pd.DataFrame, frames: Frames, directory: Path) -> list[Path]:
    """Write all tables of one sweep, and where their runs come from; print the tables; the paths."""
    frame, grid = method_frame(cells), grid_frame(cells)
    made, made_grid = method_table(cells, frame, frames), grid_table(cells, grid)
    if (grid["measure"] == "accuracy").all():
        frame, grid = (one.drop(columns="measure") for one in (frame, grid))
    texts = table_texts("table", csv(frame), [made])
    texts |= table_texts("grid", csv(grid), [made_grid], tex=False)
    texts["runs.csv"] = csv(sources(_runs(cells, frames)))
    terminal = console(100)
    show(made_grid, terminal)
    show(made, terminal)
    return write_texts(directory, texts)


def method_frame(cells: pd.DataFrame) -> pd.DataFrame:
    """A row per method and setting of one sweep, at its chosen learning rate; empty where no run has finished.

    Returns:
        NUMBERS and the columns of `over_seeds`, renamed as NAMES says. Accuracies, their deviations over the seeds and
        the ends of the interval are fractions, the gain is in percentage points. Interval and `p_mcnemar` are a single
        run's. `best_setting`: of all settings of the method that most seeds have ended, the best on validation.
    """
    there = shown(cells)
    means = (
        over_seeds(rows_shown(cells))
        .assign(variant=lambda frame: frame["words"])
        .rename(columns=NAMES)
    )
    known = means.groupby("facet")["tested"].transform("first")  # where no run has finished
    means["place"] = means["facet"] + means["tested"].fillna(known).fillna("")
    ended = means.sort_values(["n", "loss"], ascending=[False, True], kind="stable")
    best_of = ended.drop_duplicates(["place", "method"]).index  # of equal ones the first
    means["best_setting"] = means.index.isin(best_of)
    runs: dict[str, Row] = {row["run_id"]: row for row in there.to_dict("records")}
    rows: list[Any] = means.to_dict("records")
    best = {(row["place"], row["method"]): row for row in rows if row["best_setting"]}
    open_ = {*cells.loc[pending(cells), "facet"]}
    for row in rows:
        zero, mezo = (best.get((row["place"], method)) for method in (ZERO_SHOT, BASE))
        if row["seeds"] == row["n"] == 1 and row["measure"] == "accuracy":
            n, accuracy = int(row["test_n"]), row["test_accuracy"]
            row["test_low"], row["test_high"] = wilson_interval(round(accuracy * n), n)
        if zero is not None and row["method"] != ZERO_SHOT:
            gain = _factor(row) * (row["test_accuracy"] - zero["test_accuracy"])
            row |= {"gain_points": round(gain, 10), "p_mcnemar": _p(row, zero, runs)}
        decided = row["seeds"] == 1 or row["facet"] not in open_
        if decided and mezo is not None and row["method"] not in (BASE, *UNTRAINED):
            row["p_mezo"] = _p(row, mezo, runs)
    rows += _majority(there)
    left_out = ["facet", "words", "tested", "loss", "place", "best_setting"]
    columns = dict.fromkeys([*means.columns.drop(left_out), *NUMBERS])
    frame = pd.DataFrame(rows, columns=list(columns))
    frame["lr"] = frame["lr"].where(~frame["method"].isin(UNTRAINED))
    return frame.convert_dtypes()  # whole numbers stay whole where there are gaps


def grid_frame(cells: pd.DataFrame) -> pd.DataFrame:
    """Every run of one sweep in numbers: one row per method, setting, learning rate and seed."""
    names = {"optimizer": "method", "words": "variant", "made_steps": "last_step"}
    frame = shown(cells).drop(columns=["method", "variant"]).rename(columns=names)
    frame["lr"] = frame["lr"].where(~frame["method"].isin(UNTRAINED))
    return frame[["method", *_differing(frame), *GRID, "measure"]].convert_dtypes()


def method_table(cells: pd.DataFrame, frame: pd.DataFrame, frames: Frames, name: str = "") -> Table:
    """The frame of `method_frame` as a table; `name`: its id on the page."""
    several_seeds = frame["seeds"].max() > 1
    digits = ".2f" if several_seeds else ".1f"
    unit = _unit(frame)
    settings = bool((~frame.loc[frame["method"] != MAJORITY, "best_setting"]).any())

    def of_passes(row: Row) -> tuple[str, ...]:
        return uncounted([row["method"]])

    def heading(words: str, key: str) -> str:
        sizes = frame[key].dropna().unique()
        return words + (f", n={sizes[0]}" if len(sizes) == 1 else "")

    columns: dict[str, Column] = {
        "method": lambda row: (
            BEST * (settings and row["best_setting"] and row["method"] not in UNTRAINED)
            + method_label(row["method"])
        ),
        **_names(frame),
        "lr": _known(
            "lr", "g", lambda row: [LACKING] * (row["lacking"] > 0) + [EDGE] * row["at_edge"]
        ),
        "best step": _known("best_step", ",.0f"),
        heading(f"val. {unit}", "val_n"): _known("val_accuracy", digits),
        heading(f"test {unit}", "test_n"): _known("test_accuracy", digits),
        "95 % interval": _interval,
        "gain, points": _known("gain_points", "+.1f"),
        "p": _known("p_mcnemar", ".2g"),
        "p, MeZO": _known("p_mezo", ".2g"),
        "ms per step": _known("step_ms", ".1f"),
        "passes per step": _known("forwards_per_step", "g", of_passes),
        "passes to best": _known("forwards_to_best", ",.0f", of_passes),
    }
    if several_seeds or _differing(frame):
        columns |= {
            "n": lambda row: Cell(f"{row['n']} of {row['seeds']}", float(row["n"])),
            "collapsed": ("collapsed", ".0f"),
            "GiB": _known("peak_gib", ".2f"),
        }
    return Table.of(
        f"{cells['sweep'].iloc[0]}: every method at its best learning rate",
        frame,
        columns,
        names=1 + len(_differing(frame)),
        caption=[*_caption(cells, frames, frame), *[MARKED] * settings, *notes(cells, frames)],
        facets=frame[["model", "task", "precision", "method"]].to_dict("records"),
        name=name,
    )


def grid_table(cells: pd.DataFrame, frame: pd.DataFrame) -> Table:
    """The frame of `grid_frame` as a table."""
    columns: dict[str, Column] = {
        "method": lambda row: method_label(row["method"]),
        **_names(frame),
        "lr": ("lr", "g"),
        f"val. {_unit(frame)}": _known("val_accuracy", ".1f"),
        f"test {_unit(frame)}": _known("test_accuracy", ".1f"),
        "best step": _known("best_step", ",.0f"),
        "status": _became,
    }
    said = "→ is the chosen learning rate, * a collapsed run, – one that has not finished."
    title = f"{cells['sweep'].iloc[0]}: every learning rate tried"
    return Table.of(title, frame, columns, names=1 + len(_differing(frame)), caption=[said])


def _runs(cells: pd.DataFrame, frames: Frames) -> pd.DataFrame:
    """The rows of the runs frame behind the tables."""
    return frames.runs[frames.runs["run_id"].isin(shown(cells)["run_id"])]


def _majority(cells: pd.DataFrame) -> Iterator[Row]:
    """A row for the test examples of each facet: the share of the test examples that are of the largest class."""
    if not all(command and "sweep=" not in command for command in cells["command"]):
        return  # a sweep of conf/
    known = cells[~cells["labels"].isin([None, ""])]
    for _, run in known.drop_duplicates(["facet", "tested"]).iterrows():
        row: dict[Any, Any] = run[["sweep", *PLACE, "test_n"]].to_dict()
        row |= {"method": MAJORITY, "status": "finished", "measure": "accuracy", "run_ids": ""}
        row |= {"n": 1, "seeds": 1, "lacking": 0, "collapsed": 0}
        row |= {"at_edge": False, "best_setting": False, "variant": run["data"]}
        yield row | {"test_accuracy": of_majority(run["labels"])[0]}


def _p(row: Row, base: Row, runs: Mapping[str, Row]) -> float | None:
    """The p-value of a row's difference from another's, by seed; of one seed McNemar's, if both logged predictions.

    The untrained model has one run, which is compared with one of a row.
    """
    mine, theirs = ({runs[i]["seed"]: runs[i] for i in r["run_ids"].split()} for r in (row, base))
    if base["method"] == ZERO_SHOT:
        theirs = dict(zip(mine, theirs.values(), strict=False)) if row["seeds"] == 1 else {}
    pairs = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    if len(pairs) > 1:
        gaps = pd.Series([one["test_accuracy"] - other["test_accuracy"] for one, other in pairs])
        return float(paired_estimates(gaps, [gaps * 0])["p_value"].iloc[0])
    if not pairs or not all(run["labels"] and run["predictions"] for run in pairs[0]):
        return None
    right, other = map(_right_answers, pairs[0])
    return sign_test(int((right & ~other).sum()), int((other & ~right).sum()))


def _right_answers(run: Row) -> Any:
    """Whether the run gets each test example right, checked against what it logged of them."""
    predictions, labels = run["predictions"] or "", run["labels"] or ""
    if not labels or len(labels) != len(predictions) or len(labels) != run["test_n"]:
        raise LogError(
            f"run {run['run_id']} logs {len(predictions)} test predictions and {len(labels)} labels "
            f"for {run['test_n']:.0f} examples"
        )
    right = np.array(list(predictions)) == np.array(list(labels))
    if abs(right.mean() - run["test_accuracy"]) > 1e-6:
        raise LogError(
            f"run {run['run_id']} logs a test accuracy of {run['test_accuracy']:.6f}, "
            f"but its predictions have {right.mean():.6f}"
        )
    return right


def _differing(frame: pd.DataFrame) -> list[str]:
    """What names a row beside its method."""
    keys = (*PLACE, "variant", "seed")
    return [key for key in keys if key in frame and frame[key].nunique() > 1]


def _names(frame: pd.DataFrame) -> dict[str, Column]:
    """The columns of what names a row beside its method."""
    return {
        key: lambda row, key=key: LABELS.get(key, str)(row[key])  # type: ignore[misc]
        for key in _differing(frame)
    }


def _unit(frame: pd.DataFrame) -> str:
    """The heading of what was measured: %, or the measure where it is no accuracy."""
    known = frame[frame["status"] == "finished"]
    names = [str(name) for name in (known if len(known) else frame)["measure"].unique()]
    parts = [name.replace("_", " ") + " %" * (name not in OF_UNIT) for name in names]
    return ", ".join(parts).replace("accuracy %", "%")


def _factor(row: Row) -> int:
    return 1 if row["measure"] in OF_UNIT else 100


def _cell(row: Row, key: str, form: str, notes: tuple[str, ...] = ()) -> Cell:
    """A number of a finished run, or the mark of why there is none."""
    if row["status"] != "finished":
        lost = row["status"] == "collapsed"
        return Cell(COLLAPSED if lost else ABSENT, kind="collapsed" if lost else "missing")
    if row["method"] in UNTRAINED and key in OF_TRAINING:
        return Cell(ABSENT)
    if "accuracy" not in key:
        return number(row[key], form, notes=notes)
    factor, spread = _factor(row), row.get(key.replace("accuracy", "std"))
    known = {"tail": f" ± {factor * spread:.2f}" if pd.notna(spread) else ""}
    if key == "test_accuracy":
        known |= {"runs": row.get("run_ids", ""), "kind": "measured"}
    return number(row[key], form if factor == 100 else ".4g", factor, **known)


def _known(
    key: str, form: str, notes: Callable[[Row], Iterable[str]] = lambda row: ()
) -> Callable[[Row], Cell]:
    """What makes the cell of a number of a finished run, with its notes."""
    return lambda row: _cell(row, key, form, tuple(notes(row)))


def _interval(row: Row) -> Cell:
    if row["status"] != "finished" or pd.isna(row["test_low"]):
        return _cell(row, "test_low", "")
    ends = [number(row[key], ".1f", 100) for key in ("test_low", "test_high")]
    return Cell("–".join(end.text for end in ends), ends[0].value)


def _became(row: Row) -> str:
    """What became of a run, in words."""
    step, chosen = row["last_step"], row["chosen"] and row["method"] not in UNTRAINED
    started = bool(pd.notna(step) and step > 0)
    known = {
        "finished": f"{BEST * chosen}finished",
        "collapsed": f"{COLLAPSED} collapsed at step {row['collapse_step']}",
        "duplicated": f"{ABSENT} ended twice with different results",
    }
    stopped = f"at step {step}" if started else "before its first step"
    return known.get(row["status"], f"{ABSENT} stopped {stopped}")


def _caption(cells: pd.DataFrame, frames: Frames, frame: pd.DataFrame) -> Iterator[str]:
    there, runs = shown(cells), _runs(cells, frames)
    yield CAPTION
    if (frame["method"] == MAJORITY).any():
        yield "majority: the largest class of the test examples."
    for column, name in CHOSEN_BY.items():
        if there[column].notna().any():
            yield f"task.select_by={name}: in place of validation accuracy it chooses rates, settings and steps."
    if frame["seeds"].max() > 1:
        yield SEEDS
    yield foot(f"{len(runs)} runs of {cells['sweep'].iloc[0]}", runs)
    if there["device"].nunique() > 1:
        yield "The runs come from different devices: times per step do not compare."
    if frames.unidentified:
        names = ", ".join(path.name for path in frames.unidentified)
        yield f"Killed before W&B wrote which sweep they belong to: {names}."
