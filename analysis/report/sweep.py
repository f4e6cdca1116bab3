"""The tables of a sweep: each method of each setting at its chosen learning rate, and every learning rate tried.

Files in DIR/<sweep>/ are table.{csv,md,tex}, grid.{csv,md} and runs.csv; the page shows the same table. The csv
files hold what the runs logged, unrounded, in the units of docs/reference/run-directory.md.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.paper.names import LABELS, UNTRAINED, ZERO_SHOT, method_label, plain, uncounted
from analysis.report.markdown import csv, table_texts, write_texts
from analysis.report.table import ABSENT, COLLAPSED, Cell, Column, Row, Table, console, number, show
from analysis.select.cell_runs import (
    EDGE,
    MAJORITY,
    OF_UNIT,
    choose,
    of_majority,
    over_seeds,
    right_answers,
)
from analysis.select.provenance import foot, sources
from analysis.select.trials import FACET, Trials, in_words
from analysis.stats.inference import paired_estimates, sign_test, wilson_interval

CAPTION = (
    "lr: the one of best validation accuracy, of equal ones the smaller. Test accuracy: at the step of "
    "best validation accuracy, with its 95 % Wilson interval. Gain and p: against zero-shot on the "
    "same test examples, two-sided exact McNemar test, not corrected for the number of methods. "
    "p, MeZO: the same against MeZO's best setting; of several seeds Student's test of the differences by seed. "
    "Time per step: median. Passes: forward passes of training, without evaluation."
)
SEEDS = "Accuracies: mean ± sample standard deviation over the n finished seeds, without interval and test."
BASE = "mezo"
BEST = "→ "
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


def write_tables(trials: Trials, directory: Path) -> list[Path]:
    """Write all tables, and where their runs come from, into a directory; print the tables; the paths."""
    frame, grid = method_frame(trials), grid_frame(trials)
    shown, shown_grid = method_table(trials, frame), grid_table(trials, grid)
    if (trials.table["measure"] == "accuracy").all():
        frame, grid = (one.drop(columns="measure") for one in (frame, grid))
    texts = table_texts("table", csv(frame), [shown])
    texts |= table_texts("grid", csv(grid), [shown_grid], tex=False)
    texts["runs.csv"] = csv(sources(trials.runs))
    terminal = console(100)
    show(shown_grid, terminal)
    show(shown, terminal)
    return write_texts(directory, texts)


def method_frame(trials: Trials) -> pd.DataFrame:
    """A row per method and setting at its chosen learning rate, empty where no run has finished.

    Returns:
        NUMBERS and the columns of `over_seeds`, renamed as NAMES says. Accuracies, their deviations over the seeds and
        the ends of the interval are fractions, the gain is in percentage points. Interval and `p_mcnemar` are a single
        run's. `best_setting`: of all settings of the method that most seeds have ended, the best on validation.
    """
    means = over_seeds(choose(_named(trials.table))).rename(columns=NAMES)
    runs: dict[str, Row] = {row["run_id"]: row for row in trials.table.to_dict("records")}
    rows: list[Any] = means.to_dict("records")
    untrained = {row["facet"]: row for row in rows if row["method"] == ZERO_SHOT}
    best: dict[tuple[Any, ...], Row] = {}
    for row in sorted(rows, key=_validated, reverse=True):  # of equal ones the first
        best.setdefault((row["method"], row["facet"]), row)
    for row in rows:
        run = runs.get(row["run_ids"]) if row["seeds"] == 1 else None
        zero = untrained.get(row["facet"])
        if run is not None and row["measure"] == "accuracy":
            right = round(run["test_accuracy"] * run["test_n"])
            row["test_low"], row["test_high"] = wilson_interval(right, int(run["test_n"]))
        if zero is not None and zero is not row and _same_rows(row, zero, runs):
            gain = _factor(row) * (row["test_accuracy"] - zero["test_accuracy"])
            row |= {"gain_points": round(gain, 10), "p_mcnemar": _p(run, runs.get(zero["run_ids"]))}
        mezo = best.get((BASE, row["facet"]))
        row["best_setting"] = best[row["method"], row["facet"]] is row
        if (
            mezo is not None
            and row["method"] not in (BASE, *UNTRAINED)
            and _same_rows(row, mezo, runs)
        ):
            row["p_mezo"] = _p_over_seeds(row, mezo, runs)
    if trials.typed:
        rows += _majority(trials.table)
    columns = dict.fromkeys([*means.columns.drop(["facet", "merit"]), *NUMBERS])
    frame = pd.DataFrame(rows, columns=list(columns))
    frame["lr"] = frame["lr"].where(~frame["method"].isin(UNTRAINED))
    return frame.convert_dtypes()  # whole numbers stay whole where there are gaps


def grid_frame(trials: Trials) -> pd.DataFrame:
    """Every run in numbers: one row per method, setting, learning rate and seed."""
    names = {"optimizer": "method", "made_steps": "last_step"}
    frame = _named(trials.table).drop(columns="method").rename(columns=names)
    frame = frame.assign(lr=frame["lr"].where(~frame["method"].isin(UNTRAINED)))
    return frame[["method", *_differing(frame), *GRID, "measure"]].convert_dtypes()


def method_table(trials: Trials, frame: pd.DataFrame, name: str = "") -> Table:
    """The frame of `method_frame` as a table; `name`: its id on the page."""
    several_seeds = frame["seeds"].max() > 1
    digits = ".2f" if several_seeds else ".1f"
    unit = _unit(frame)
    settings = bool((~frame.loc[frame["method"] != MAJORITY, "best_setting"]).any())

    def heading(words: str, key: str) -> str:
        sizes = frame[key].dropna().unique()
        return words + (f", n={sizes[0]}" if len(sizes) == 1 else "")

    columns: dict[str, Column] = {
        "method": lambda row: (
            BEST * (settings and row["best_setting"] and row["method"] not in UNTRAINED)
            + method_label(row["method"])
        ),
        **_names(frame),
        "lr": _known("lr", "g", _rate_notes),
        "best step": _known("best_step", ",.0f"),
        heading(f"val. {unit}", "val_n"): lambda row: _score(row, "val_accuracy", digits),
        heading(f"test {unit}", "test_n"): lambda row: _score(row, "test_accuracy", digits),
        "95 % interval": _interval,
        "gain, points": _known("gain_points", "+.1f"),
        "p": _known("p_mcnemar", ".2g"),
        "p, MeZO": _known("p_mezo", ".2g"),
        "ms per step": _known("step_ms", ".1f"),
        "passes per step": _known("forwards_per_step", "g", _uncounted),
        "passes to best": _known("forwards_to_best", ",.0f", _uncounted),
    }
    if several_seeds or _differing(frame):
        columns |= {
            "n": lambda row: Cell(f"{row['n']} of {row['seeds']}", float(row["n"])),
            "collapsed": ("collapsed", ".0f"),
            "GiB": _known("peak_gib", ".2f"),
        }
    records = frame.to_dict("records")
    return Table.of(
        f"{trials.sweep}: every method at its best learning rate",
        records,
        columns,
        names=1 + len(_differing(frame)),
        caption=[
            *_caption(trials, several_seeds),
            *[f"{BEST}the method's best setting on validation."] * settings,
            *trials.notes,
        ],
        facets=[
            {key: row[key] for key in ("model", "task", "precision", "method")} for row in records
        ],
        name=name,
    )


def grid_table(trials: Trials, frame: pd.DataFrame) -> Table:
    """The frame of `grid_frame` as a table."""
    columns: dict[str, Column] = {
        "method": lambda row: method_label(row["method"]),
        **_names(frame),
        "lr": ("lr", "g"),
        f"val. {_unit(frame)}": lambda row: _score(row, "val_accuracy", ".1f"),
        f"test {_unit(frame)}": lambda row: _score(row, "test_accuracy", ".1f"),
        "best step": _known("best_step", ",.0f"),
        "status": _became,
    }
    said = "→ is the chosen learning rate, * a collapsed run, – one that has not finished."
    title, names = f"{trials.sweep}: every learning rate tried", 1 + len(_differing(frame))
    return Table.of(title, frame.to_dict("records"), columns, names=names, caption=[said])


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a trials' table with the method as `optimizer`, and as `variant` what else names a row."""
    words = table["method"].str.partition("=")[2]
    pairs = zip(words, table["variant"], strict=True)
    variants = [", ".join(filter(None, pair)) for pair in pairs]
    return table.assign(optimizer=table["method"].map(plain), variant=variants)


def _same_rows(row: Row, other: Row, runs: Mapping[str, Row]) -> bool:
    """Whether the runs of two rows were tested on the same examples, as far as they logged them."""
    both = [runs[i] for i in f"{row['run_ids']} {other['run_ids']}".split()]
    logged = {one["labels"] for one in both} - {None, ""}
    return len({one["test_n"] for one in both if pd.notna(one["test_n"])}) <= 1 and len(logged) <= 1


def _majority(table: pd.DataFrame) -> Iterator[Row]:
    """A row for each facet: the share of the test examples that are of the largest class."""
    known = table[~table["labels"].isin([None, ""])].drop_duplicates("facet")
    for run in known.to_dict("records"):
        row = {key: run[key] for key in ("sweep", "model", "task", "precision", "test_n")}
        row |= {"method": MAJORITY, "status": "finished", "measure": "accuracy"}
        row |= {"variant": in_words(json.loads(run["facet"])[-1])}
        row |= {"n": 1, "seeds": 1, "lacking": 0, "at_edge": False, "best_setting": False}
        yield row | {"collapsed": 0, "run_ids": "", "test_accuracy": of_majority(run["labels"])[0]}


def _validated(row: Row) -> tuple[int, float]:
    """Sorts settings by the seeds that have finished, then by validation."""
    return row["n"], row["merit"] if pd.notna(row["merit"]) else float("-inf")


def _p_over_seeds(row: Row, base: Row, runs: dict[str, Row]) -> float | None:
    """The p-value of a row's difference from another's, by seed; of one seed McNemar's."""
    mine, theirs = ({runs[i]["seed"]: runs[i] for i in r["run_ids"].split()} for r in (row, base))
    shared = sorted(mine.keys() & theirs.keys())
    if len(shared) < 2:
        return _p(mine[shared[0]], theirs[shared[0]]) if shared else None
    gaps = [mine[seed]["test_accuracy"] - theirs[seed]["test_accuracy"] for seed in shared]
    return float(
        paired_estimates(pd.Series(gaps), [pd.Series(0, range(len(gaps)))])["p_value"].iloc[0]
    )


def _p(run: Row | None, zero: Row | None) -> float | None:
    """McNemar's test of two single runs that logged predictions of the same test examples."""
    if run is None or zero is None or not run["labels"] or run["labels"] != zero["labels"]:
        return None
    mine, other = (right_answers(one) for one in (run, zero))
    return sign_test(int((mine & ~other).sum()), int((other & ~mine).sum()))


def _differing(frame: pd.DataFrame) -> list[str]:
    """What names a row beside its method."""
    keys = [key for key in (*FACET, "seed") if key in frame]
    return [key for key in keys if frame[key].nunique() > 1]


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


def _score(row: Row, key: str, digits: str) -> Cell:
    """A value of the row's measure."""
    factor = _factor(row)
    return _cell(row, key, digits if factor == 100 else ".4g", factor)


def _cell(row: Row, key: str, form: str, factor: float = 1, notes: tuple[str, ...] = ()) -> Cell:
    """A number of a finished run, or the mark of why there is none."""
    if row["status"] != "finished":
        lost = row["status"] == "collapsed"
        return Cell(COLLAPSED if lost else ABSENT, kind="collapsed" if lost else "missing")
    if row["method"] in UNTRAINED and key in OF_TRAINING:
        return Cell(ABSENT)
    spread = row.get(key.replace("accuracy", "std")) if "accuracy" in key else None
    known = {"tail": f" ± {factor * spread:.2f}" if pd.notna(spread) else "", "notes": notes}
    if key == "test_accuracy":
        known |= {"runs": row.get("run_ids", ""), "kind": "measured"}
    return number(row[key], form, factor, **known)


def _known(
    key: str, form: str, notes: Callable[[Row], Iterable[str]] = lambda row: ()
) -> Callable[[Row], Cell]:
    """What makes the cell of a number of a finished run, with its notes."""
    return lambda row: _cell(row, key, form, notes=tuple(notes(row)))


def _uncounted(row: Row) -> tuple[str, ...]:
    return uncounted([row["method"]])


def _interval(row: Row) -> Cell:
    if row["status"] != "finished" or pd.isna(row["test_low"]):
        return _cell(row, "test_low", "")
    ends = [number(row[key], ".1f", 100) for key in ("test_low", "test_high")]
    return Cell("–".join(end.text for end in ends), ends[0].value)


def _rate_notes(row: Row) -> Iterator[str]:
    """What the choice of a learning rate hides."""
    if row["lacking"]:
        yield "chosen without the runs that have not finished"
    if row["at_edge"]:
        yield EDGE


def _became(row: Row) -> str:
    """What became of a run, in words."""
    if row["status"] == "finished":
        return "→ finished" if row["chosen"] and row["method"] not in UNTRAINED else "finished"
    if row["status"] == "collapsed":
        return f"{COLLAPSED} collapsed at step {row['collapse_step']}"
    if row["status"] == "duplicated":
        return f"{ABSENT} ended twice with different results"
    step = row["last_step"]
    started = bool(pd.notna(step) and step > 0)
    return f"{ABSENT} stopped " + (f"at step {step}" if started else "before its first step")


def _caption(trials: Trials, several_seeds: bool) -> Iterator[str]:
    runs = trials.runs
    yield CAPTION
    if trials.typed:
        yield "majority: the largest class of the test examples."
    for column, name in CHOSEN_BY.items():
        if trials.table[column].notna().any():
            yield f"task.select_by={name}: in place of validation accuracy it chooses rates, settings and steps."
    if several_seeds:
        yield SEEDS
    yield foot(f"{len(runs)} runs of {trials.sweep}", runs)
    if trials.table["device"].nunique() > 1:
        yield "The runs come from different devices: times per step do not compare."
    if trials.frames.unidentified:
        names = ", ".join(path.name for path in trials.frames.unidentified)
        yield f"Killed before W&B wrote which sweep they belong to: {names}."
