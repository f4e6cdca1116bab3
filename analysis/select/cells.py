"""The cells' frame: a row per cell that the sweeps ask for, with what its run says. Every table is a query of it.

    cells = fill(frames.cells_of(["table1"]), frames.runs)     asked for, made, chosen
    table = over_seeds(cells)                                  mean, sample standard deviation, n

A run fills a cell if its id is the cell's, whatever W&B group it was logged under: the id is a hash of everything that
decides the run's numbers, so one run can fill cells of several sweeps.

A row of a table is all that differs (ROW): its runs differ in the learning rate, which is chosen, and in the seed, over
which they are averaged. A `facet` is what is measured, and on what; no number compares runs of two facets.

The learning rate is chosen once per row, as the paper does, by validation accuracy alone. The rates of which most seeds
have ended are compared over the seeds that all of them have; the mean decides, of equal ones the smaller rate. A run
that failed or is missing has not ended. A collapsed run has ended and counts as an accuracy of 0; a rate of which every
seed collapsed is never chosen. With one seed that is the paper's protocol.

The untrained model has no seed: however often it was evaluated, it counts as one run.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.frames import MEASURES, Frames, plain
from analysis.paper.names import LABELS, UNTRAINED, ZERO_SHOT, method_order, variant_name
from zo.differences import in_facet, shortened

ROOT = Path(__file__).parents[2]
STATUSES = ("finished", "collapsed", "unfinished", "missing", "duplicated", "incomplete")
MAJORITY = "majority"
OF_UNIT = ("perplexity", "reward", "measure")
"""Measures that are no fractions."""
LOWER = ("perplexity",)
"""Measures of which a smaller value is better."""
SPOILED = {
    "incomplete": "incomplete runs finished without logging their numbers",
    "duplicated": "read only one source of each duplicated run",
}
"""Status of a run that another start would not fill -> what is said of it."""
PLACE = ["model", "task", "precision"]
ROW = ["sweep", "model", "task", "optimizer", "precision", "variant"]
"""What a learning rate is chosen for."""

MEDIANS = (
    *("step_ms", "peak_gib", "state_mib", "best_step", "val_n", "test_n"),
    *("forwards_per_step", "forwards_to_best"),
)
EDGE = "the best learning rate is the smallest or the largest of its grid"
"""What a table says of a cell that is `at_edge`."""

TAKEN = {
    "status": "status",
    "failed": "failed",
    "val_accuracy": "best/val_accuracy",
    "test_accuracy": "best/test_accuracy",
    "test_macro_f1": "best/test_macro_f1",
    "val_macro_f1": "best/val_macro_f1",
    "val_best_loss": "best/val_loss",
    "val_reward": "best/val_reward",
    "test_exact": "eval/test_rewards/exact",
    "drift": "eval/drift",
    "also": "eval/also_reward",
    "val_loss": "eval/val_loss",
    "best_step": "best/step",
    "val_n": "best/val_n",
    "test_n": "best/test_n",
    "collapse_step": "run/collapse_step",
    "made_steps": "last_step",
    "forwards_per_step": "run/forwards_per_step",
    "forwards_to_best": "forwards_to_best",
    "step_ms": "time/step_ms_median",
    "peak_gib": "mem/peak_gib",
    "state_mib": "mem/state_mib",
    "device": "provenance.device",
    "duplicates": "duplicates",
    "predictions": "best/test_predictions",
    "labels": "test/labels",
}
"""Column of a filled cell -> column of the runs frame."""

TEXT = ("status", "device", "predictions", "labels")
VARIED = ("k", "m", "adaptive_noise", "eps")
"""Columns for what sweeps vary beside method, learning rate and seed: the last part of the key in `variant`."""

DESCRIBED = ("variant", "facet", "words", "method", "apart", "data", "panel")
"""Columns for what tells a cell from others."""
SHORT = {"optimizer.k": "k", "optimizer.m": "m", "optimizer.adaptive_noise": "adaptive noise"}
"""Keys in the order of their words, and those words; others follow as they are."""
MOST_VARIANTS = 6  # that share a panel: as many as there are markers


def fill(expected: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The frame of the module, in the order of the tables: the columns of `Frames.cells_of`, TAKEN, VARIED, `choose`.

    Accuracies are fractions, or values of the row's `measure`, at the step of the best validation accuracy; `val_loss`
    is nats at the last evaluation, minus the reward where a run improves one, with `val_reward` and maybe `test_exact`;
    `predictions` and `labels` have one digit per test example. Numbers are float64 with NaN, everything else objects
    with None, where the run did not log it. `loss` is what the choice of a rate minimises, NaN of a run that has not
    ended; `tested` is equal for runs that were tested on the same examples. DESCRIBED says how a reader is told.

    A status is `finished`; `collapsed`: a loss or a weight became non-finite; `unfinished`: killed, failed or still
    running; `missing`: there is no such run; `incomplete`: it finished but did not log its numbers; `duplicated`: the
    run ended more than once, with different numbers, and somebody has to say which of them counts.
    """
    by_id = runs.drop_duplicates("run_id").set_index("run_id")
    cells = expected.reset_index(drop=True)
    found = by_id.reindex(index=cells["run_id"], columns=list(TAKEN.values())).set_axis(cells.index)
    for name, values in found.set_axis([*TAKEN], axis=1).items():
        if name in TEXT:
            cells[name] = values.astype(object).where(values.notna(), None)
        else:
            cells[name] = pd.to_numeric(values, errors="coerce").astype("float64")
    _take_measure(cells, by_id)
    lost = cells[["best_step", "val_accuracy"]].isna().any(axis=1)
    of_answers = cells[["test_accuracy", "val_n", "test_n"]].isna().any(axis=1)
    lost |= of_answers & (cells["measure"] == "accuracy")
    there, twice = cells["run_id"].isin(by_id.index), cells["duplicates"] > 0
    status = cells["status"].where(there, "missing").mask(twice, "duplicated")
    cells["status"] = status.mask((status == "finished") & lost, "incomplete").astype(object)
    variants = pd.Series([json.loads(text) for text in cells["variant"]], cells.index, dtype=object)
    parts = [_described(mine, variants[mine.index], by_id) for _, mine in cells.groupby("sweep")]
    cells["tested"] = cells["test_n"].astype(str) + " " + cells["labels"].fillna("")
    for name in (*VARIED, *DESCRIBED):
        cells[name] = pd.concat([part[name] for part in parts]) if parts else None
    cells["measure"] = cells["measure"].groupby(_rows(cells)).transform("max")  # of all seeds
    by_loss = cells["val_best_loss"].notna().groupby(_rows(cells)).transform("any")
    worst = np.where((cells["measure"] == "accuracy") & ~by_loss, 0.0, np.inf)
    value = cells["val_accuracy"] * np.where(cells["measure"].isin(LOWER), 1, -1)
    for name, sign in (("val_best_loss", 1), ("val_macro_f1", -1)):  # no run by another measure
        given = cells[name].notna().groupby(_rows(cells)).transform("any")
        value = value.mask(given, sign * cells[name])
    losses = value.where(cells["status"] == "finished")
    return choose(cells.assign(loss=losses.mask(cells["status"] == "collapsed", worst)))


def _rows(cells: pd.DataFrame, *more: str) -> pd.Series:
    """The number of each cell's row, counted in their order."""
    return cells.groupby([*ROW, *more], sort=False, dropna=False).ngroup().rename("row")


def _take_measure(cells: pd.DataFrame, by_id: pd.DataFrame) -> None:
    """Adds each run's `measure`; the columns of accuracies have its values, whatever it is."""
    cells["measure"] = "accuracy"
    for name in MEASURES[1:]:
        keys = [f"best/{split}_{name}" for split in ("val", "test")]
        found = by_id.reindex(index=cells["run_id"], columns=keys).set_axis(cells.index)
        mine = cells["val_accuracy"].isna() & found[keys[0]].notna()
        cells.loc[mine, "measure"] = name
        for column, key in zip(("val_accuracy", "test_accuracy"), keys, strict=True):
            cells[column] = cells[column].where(~mine, pd.to_numeric(found[key]))


def _described(cells: pd.DataFrame, variants: pd.Series, by_id: pd.DataFrame) -> pd.DataFrame:
    """One sweep's columns that say of each cell in what it differs from others, and how a reader is told.

    All variants of a sweep get the same keys, out of the runs' configurations: a key that a later command began to
    vary is one of the earlier runs, too. In figures, a method that is alone is told apart by its settings, as far as
    these fit one panel: `method` has their words, `apart` those of the others.
    """
    trained = ~cells["optimizer"].isin(UNTRAINED)
    order = {key: i for i, key in enumerate(SHORT)}
    found = {key for variant in variants for key in variant}
    keys = sorted(found, key=lambda key: (order.get(key, len(order)), key))
    nested = {k for variant in variants for k, v in variant.items() if isinstance(v, list | dict)}
    for run, variant, steps in zip(cells["run_id"], variants, trained, strict=True):
        for key in keys:
            if key in variant or run not in by_id.index or not (steps or in_facet(key)):
                continue
            known = by_id[key].get(run) if key in by_id else None
            if pd.notna(known):
                variant[key] = _unfolded(known) if key in nested else plain(known)
            elif key in str(by_id.get("nulls", pd.Series(dtype=object)).get(run)).split():
                variant[key] = None
    texts = {
        k: [str(v[k]) for v in variants if isinstance(v.get(k), str | list | dict)] for k in keys
    }
    short = {key: shortened(of) for key, of in texts.items() if of}

    def shown_value(key: str, value: Any) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        if value is None:
            return "null"
        return short.get(key, {}).get(str(value), str(value))

    def words(variant: Mapping[str, Any]) -> str:
        """A variant as a title shows it: short where a key names itself."""
        named = ((key, variant[key]) for key in keys if key in variant)
        return ", ".join(f"{SHORT.get(key, key)} = {shown_value(key, v)}" for key, v in named)

    shared: list[str] = []
    places: list[dict[str, Any]] = [{}]
    for key in [key for key in keys if cells.loc[trained, "optimizer"].nunique() == 1]:
        several = _different(_part(variant, [*shared, key]) for variant in variants[trained])
        if not in_facet(key) and len(several) <= MOST_VARIANTS:
            shared, places = [*shared, key], several
    rows = []
    for method, variant, steps in zip(cells["optimizer"], variants, trained, strict=True):
        own, of = _part(variant, shared), len(places)
        alone = of == 1 or not steps
        named = method if alone else variant_name(method, places.index(own), of, words(own))
        rest = variant if of == 1 else {k: v for k, v in variant.items() if k not in shared}
        facet = {key: value for key, value in variant.items() if in_facet(key)}
        rows.append([_text(variant), facet, words(variant), named, words(rest), words(facet)])
    frame = cells[PLACE].join(pd.DataFrame(rows, cells.index, DESCRIBED[:-1]))
    frame["facet"] = list(map(_text, frame[[*PLACE, "facet"]].to_numpy().tolist()))
    differ = [key for key in (*PLACE, "apart") if frame[key].nunique() > 1] or ["task"]
    parts = zip(*(frame[key].map(LABELS.get(key, str)) for key in differ), strict=True)
    last = [{key.rpartition(".")[2]: value for key, value in one.items()} for one in variants]
    frame[list(VARIED)] = pd.DataFrame(last, cells.index).reindex(columns=VARIED)
    return frame.assign(panel=[" · ".join(filter(None, part)) for part in parts])


def _unfolded(value: Any) -> Any:
    """A list or mapping whose JSON text a frame has, or another value as it is."""
    with suppress(ValueError):
        if isinstance(found := json.loads(str(value)), list | dict):
            return found
    return plain(value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _part(variant: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: variant[key] for key in keys if key in variant}


def _different(variants: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Different variants in the order of their values, numbers as numbers."""
    found = {_text(variant): variant for variant in variants}
    order = lambda x: (0, x, "") if isinstance(x, int | float) else (1, 0, _text(x))  # noqa: E731
    return sorted(found.values(), key=lambda variant: [*map(order, variant.values())])


def shown(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells that have runs, in the order of the tables."""
    there = cells[cells["status"].isin(STATUSES[:3])]
    keys = [*PLACE, "apart", "method", "lr", "seed", "run_id"]
    ordered = there.assign(method=there["method"].map(method_order))
    return there.loc[ordered.sort_values(keys, kind="stable").index].reset_index(drop=True)


def rows_shown(cells: pd.DataFrame) -> pd.DataFrame:
    """All cells of the rows that have runs: those of `shown`, then those that lack a run."""
    there = shown(cells)
    lacking = cells[~cells["status"].isin(STATUSES[:3])]
    lacking = lacking.merge(there[ROW].drop_duplicates(), on=ROW)
    return pd.concat([there, lacking], ignore_index=True) if len(lacking) else there


def choose(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells with their row's `best_lr` and `at_edge`, and `chosen`: the run has finished at that rate.

    `at_edge`: the rate is the smallest or the largest of its grid, or of the rates that most seeds have ended. Where no
    run of a row has finished nothing is chosen.
    """
    cells = cells.assign(best_lr=np.nan, at_edge=False)
    finished = cells["status"] == "finished"
    for _, row in cells.groupby(ROW, sort=False, dropna=False):
        rates = row["lr"]
        ended = row[rates.isin(rates[finished[row.index]])]
        if len(ended):
            lr = ranked(ended, "lr", "loss").index[0]
            edges = {rates.min(), rates.max(), *_most_ended(row, "lr", "loss").index[[0, -1]]}
            cells.loc[row.index, "best_lr"] = lr
            cells.loc[row.index, "at_edge"] = lr in edges and rates.nunique() > 1
    return cells.assign(chosen=finished & (cells["lr"] == cells["best_lr"]))


def ranked(runs: pd.DataFrame, key: str, loss: str) -> pd.Series:
    """Mean losses by the values of a key, the best first, of equal ones the smaller value.

    Compared are the values that most seeds have ended, over the seeds that all of them have, if there are any.
    """
    table = _most_ended(runs, key, loss)
    common = table.dropna(axis=1)
    means = (common if common.shape[1] else table).mean(axis=1)
    # Means of equal accuracies in another order differ in the last bit, which decides nothing.
    return means.iloc[np.lexsort((np.arange(len(means)), means.round(12)))]


def _most_ended(runs: pd.DataFrame, key: str, loss: str) -> pd.DataFrame:
    """The losses of the values, in rows, that most seeds, in columns, have ended."""
    table = runs.pivot_table(index=key, columns="seed", values=loss)
    ended = table.notna().sum(axis=1)
    return table[ended == ended.max()]


def over_seeds(cells: pd.DataFrame, *more: str) -> pd.DataFrame:
    """One row per ROW, or per ROW and `more`, as `seed`.

    Returns:
        The columns ROW, `more`, VARIED, `facet`, `words` and `measure`; `lr` (NaN without one), `at_edge`; `n` and
        `seeds`, the seeds whose run at that rate has finished and those expected, 1 of the untrained model;
        `test_mean`, `test_std` (ddof 1), `val_mean`, `val_std` over the n seeds, fractions; means of `val_loss` and
        `loss`; medians of MEDIANS; `collapsed`, seeds whose run at that rate is so, or whose whole grid where there is
        no rate; `status`: `finished` if n > 0, `collapsed` if all seeds are, else the first other one; `grid`, the runs
        of all rates, and `lacking`, those that have not ended; `run_ids` of the n runs; `tested`, equal in rows that
        were tested on the same examples.
    """
    by, kept = [*ROW, *more], [*VARIED, "facet", "words", "measure"]
    row = _rows(cells, *more)
    first = cells["seed"].groupby(row).transform("first")
    grid = cells[(cells["optimizer"] != ZERO_SHOT) | (cells["seed"] == first)].assign(row=row)
    grid["lost"] = grid["status"] == "collapsed"
    grid = grid.sort_values("seed", kind="stable")
    at_rate = grid[grid["lr"] == grid["best_lr"]].drop_duplicates(["row", "seed"])
    finished = at_rate[at_rate["status"] == "finished"]
    ended = pd.concat([at_rate, grid[~grid["row"].isin(at_rate["row"])]])
    seeds, runs = grid.groupby("row"), finished.groupby("row")
    same = runs["tested"]
    frame = cells.loc[~row.duplicated(), [*by, *kept]].reset_index(drop=True)
    frame = frame.assign(
        lr=at_rate.groupby("row")["lr"].first(),
        at_edge=seeds["at_edge"].first(),
        n=runs.size().reindex(frame.index, fill_value=0),
        seeds=seeds["seed"].nunique(),
        **{
            f"{short}_{how}": runs[f"{short}_accuracy"].agg(how)
            for short in ("test", "val")
            for how in ("mean", "std")
        },
        val_loss=runs["val_loss"].mean(),
        loss=runs["loss"].mean(),
        **runs[list(MEDIANS)].median(),
        collapsed=ended.groupby(["row", "seed"])["lost"].all().groupby("row").sum(),
        status=ended[~ended["lost"]].groupby("row")["status"].first(),
        grid=seeds.size(),
        lacking=grid["status"].isin(STATUSES[2:]).groupby(grid["row"]).sum(),
        run_ids=runs["run_id"].agg(" ".join),
        tested=same.first().mask(same.nunique() > 1, runs["run_id"].first()),
    )
    status = frame["status"].fillna("collapsed").mask(frame["n"] > 0, "finished")
    return frame.assign(status=status, run_ids=frame["run_ids"].fillna(""))


def notes(cells: pd.DataFrame, frames: Frames) -> list[str]:
    """Which cells of one sweep lack runs, which of its runs fill no cell, and which were made again, in sentences."""
    named = pd.concat([frames.of(sweep) for sweep in cells["sweep"].unique()])
    others = named[~named["run_id"].isin(cells["run_id"])]
    there = cells["run_id"].unique()
    again = {run: frames.replaced[run] for run in there if run in frames.replaced}
    differ = ", ".join(f"{run} ({how})" for run, how in again.items() if how)
    equal = "losses, best steps and test accuracies are equal"
    kept = f"Runs made again, in the place of recorded ones: {len(again)}"
    return [
        *(f"{sentence}." for sentence in shortfall(cells)),
        *([_replaced(cells, others, frames)] if len(others) else []),
        *[f"{kept}; {f'these differ: {differ}' if differ else equal}."] * bool(again),
    ]


def _replaced(cells: pd.DataFrame, others: pd.DataFrame, frames: Frames) -> str:
    """Which runs of a sweep fill none of its cells, and in which inputs they differ from those that do."""
    inputs = [json.loads(text) for text in cells["inputs"]]
    now = {key: {known.get(key) for known in inputs} for known in inputs for key in known}
    every = frames.cells[frames.cells["sweep"].isin(cells["sweep"])]
    older = every[every["run_id"].isin(others["run_id"])]["inputs"].map(json.loads)
    changed = {k for known in older for k in {**known, **now} if known.get(k) not in now.get(k, ())}
    why = f"other {' and '.join(sorted(changed))}" if changed else "other code or settings"
    ids = ", ".join(others["run_id"].head(5)) + ", ..." * (len(others) > 5)
    many = f"{len(others)} run{'s' * (len(others) > 1)}"
    return f"Not drawn: {many} under the sweep's name, made earlier with {why} ({ids})."


def shortfall(cells: pd.DataFrame, wanted: Mapping[str, int] | None = None) -> list[str]:
    """A sentence per sweep that lacks cells: how many, why, and what would run them. Empty if nothing lacks.

    A collapsed run is a result, not a gap. `wanted`: how many runs a sweep has, where more may be wanted than were
    started.
    """
    sizes, sentences = wanted or {}, []
    for sweep in dict.fromkeys([*cells["sweep"], *sizes]):
        mine = cells[cells["sweep"] == sweep]
        size = max(len(mine), sizes.get(sweep, 0))
        counts = {s: int((mine["status"] == s).sum()) for s in STATUSES[2:]}
        counts["missing"] += size - len(mine)
        lacking = sum(counts.values())
        if lacking:
            why = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
            text = f"{lacking} of {size} runs of {sweep} lack ({why})"
            if lacking > sum(counts[status] for status in SPOILED):
                open_ = mine[mine["status"].isin(STATUSES[2:4])]
                by_hand = [line for line in open_["command"] if line and "sweep=" not in line]
                makes = "makes the first" if by_hand else "makes them"
                text += f": `{by_hand[0] if by_hand else command(sweep)}` {makes}"
            for status, words in SPOILED.items():
                ids = ", ".join(mine.loc[mine["status"] == status, "run_id"].head(3))
                text += f"; {words} ({ids})" if ids else ""
            sentences.append(text)
    return sentences


def of_majority(labels: str) -> tuple[float, float]:
    """Accuracy and macro F1 of always predicting the largest class of the test examples."""
    counts = [labels.count(label) for label in set(labels)]
    share = max(counts) / len(labels)
    return share, 2 * share / (1 + share) / len(counts)


def command(sweep: str) -> str:
    """What makes the runs of a sweep that there are not yet."""
    return f"zo submit {typed(sweep)[0]}"


def pending(cells: pd.DataFrame) -> pd.Series:
    """Which cells wait for their run: neither did it end, nor did an error end it."""
    return cells["status"].isin(STATUSES[2:4]) & (cells["failed"] != 1)


def typed(sweep: str) -> tuple[str, str]:
    """How a sweep, or a stage of one, is typed; and the name of its file, empty without one."""
    files = [path.stem for path in (ROOT / "conf" / "sweep").glob("*.yaml")]
    file = max((name for name in files if f"{sweep}_".startswith(f"{name}_")), key=len, default="")
    stage = f" stage={sweep[len(file) + 1 :]}" * (file not in ("", sweep))
    return f"sweep={file or sweep}{stage}", file
