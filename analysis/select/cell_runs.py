"""One frame of runs, a row per cell that the sweeps ask for; every table is a query of it.

    cells = frames.cells_of(["table1"])     one row per cell, out of the sweep's manifest
    runs = fill(cells, frames.runs)         + what its run says, and which rows are chosen
    table = over_seeds(runs)                mean, sample standard deviation, n

A run fills a cell if its id is the cell's, whatever W&B group it was logged under: the id is a hash of everything that
decides the run's numbers, so one run can fill cells of several sweeps.

The learning rate is chosen once per method, model and task, as the paper does, and, where the sweep varies more, per
variant, by validation accuracy alone. The rates of which most seeds have ended are compared over the seeds that all
of them have; the mean decides, of equal ones the smaller rate. A run that failed or is missing has not ended. A
collapsed run has ended and counts as an accuracy of 0; a rate of which every seed collapsed is never chosen. With
one seed that is the paper's protocol: a collapsed run is never chosen while another one has finished.

The untrained model has no seed: however often it was evaluated, it counts as one run.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.run_file import LogError
from analysis.paper.names import ZERO_SHOT
from analysis.select.provenance import plain
from zo.differences import in_facet

ROOT = Path(__file__).parents[2]
STATUSES = ("finished", "collapsed", "unfinished", "missing", "duplicated", "incomplete")
MAJORITY = "majority"
MEASURES = ("accuracy", "exact_match", "f1", "rouge_l", "perplexity", "reward")
"""What a task may be measured by, as its run's summary names it; a classification has accuracies alone."""
OF_UNIT = ("perplexity", "reward")
"""Measures that are no fractions."""
LOWER = ("perplexity",)
"""Measures of which a smaller value is better."""
SPOILED = {
    "incomplete": "incomplete runs finished without logging their numbers",
    "duplicated": "read only one source of each duplicated run",
}
"""Status of a run that another start would not fill -> what is said of it."""
SETTING = ["sweep", "model", "task", "optimizer", "precision", "variant"]
"""What a learning rate is chosen for."""

MEDIANS = (
    *("step_ms", "peak_gib", "state_mib", "best_step", "val_n", "test_n"),
    *("forwards_per_step", "forwards_to_best"),
)
EDGE = "the best learning rate is the smallest or the largest of its grid"
"""What a table says of a cell that is `at_edge`."""

TAKEN = {
    "run_status": "status",
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

OVER_SEEDS = (
    *("facet", "measure", "merit"),
    *("lr", "at_edge", "n", "seeds", "test_mean", "test_std", "val_mean", "val_std", "val_loss"),
    *(*MEDIANS, "collapsed", "status", "grid", "lacking", "run_ids"),
)
"""What `over_seeds` adds."""

VARIED = ("k", "m", "adaptive_noise", "eps")
"""Columns for what sweeps vary beside method, learning rate and seed: the last part of the key in `variant`."""

TEXT = ("run_status", "device", "predictions", "labels")


def fill(expected: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The frame of runs: the columns of `Frames.cells_of`, `status`, those of TAKEN, VARIED and `choose`.

    Accuracies are fractions, or values of the run's `measure`, at the step of the best validation accuracy; `val_loss`
    is nats at the last evaluation, minus the reward where a run improves one, with `val_reward` and maybe `test_exact`;
    `predictions` and `labels` have one digit per test example. Numbers are float64 with NaN, everything else objects
    with None, where the run did not log it.

    A status is `finished`; `collapsed`: a loss or a weight became non-finite; `unfinished`: killed, failed or still
    running; `missing`: there is no such run; `incomplete`: it finished but did not log its numbers; `duplicated`: the
    run ended more than once, with different numbers, and somebody has to say which of them counts.
    """
    by_id = runs.drop_duplicates("run_id").set_index("run_id")
    filled = expected.reset_index(drop=True)
    found = by_id.reindex(columns=list(TAKEN.values())).reindex(filled["run_id"])
    for name, key in TAKEN.items():
        values = found[key].reset_index(drop=True)
        if name in TEXT:
            filled[name] = values.astype(object).where(values.notna(), None)
        else:
            filled[name] = pd.to_numeric(values, errors="coerce").astype("float64")
    status = filled.pop("run_status")
    present = filled["run_id"].isin(by_id.index)
    status = status.where(present, "missing").where(~(filled["duplicates"] > 0), "duplicated")
    _take_measure(filled, by_id)
    lost = filled[["best_step", "val_accuracy"]].isna().any(axis=1)
    of_answers = filled[["test_accuracy", "val_n", "test_n"]].isna().any(axis=1)
    lost |= of_answers & (filled["measure"] == "accuracy")
    status = status.where(~((status == "finished") & lost), "incomplete")
    filled.insert(len(expected.columns), "status", status.astype(object))
    _complete_variants(filled, by_id)
    varied = [
        {key.rpartition(".")[2]: value for key, value in json.loads(text).items()}
        for text in filled["variant"]
    ]
    filled[list(VARIED)] = pd.DataFrame(varied, filled.index).reindex(columns=VARIED)
    return choose(filled)


def _complete_variants(filled: pd.DataFrame, by_id: pd.DataFrame) -> None:
    """Gives all variants of a sweep the same keys, out of the runs' configurations, and adds `facet`.

    A key that a later command began to vary is one of the earlier runs, too. A facet is what is measured, and on what,
    as JSON text: model, task and precision, and those keys of the variant that `in_facet` names.
    """
    variants = [json.loads(text) for text in filled["variant"]]
    rows = list(zip(filled["sweep"], filled["run_id"], filled["steps"], variants, strict=True))
    keys: dict[str, set[str]] = {}
    for sweep, _, _, variant in rows:
        keys.setdefault(sweep, set()).update(variant)
    facets = []
    for sweep, run, steps, variant in rows:
        for key in sorted(keys[sweep] - variant.keys()):
            known = by_id[key].get(run) if key in by_id else None
            if pd.notna(known) and (steps or in_facet(key)):
                variant[key] = plain(known)
        facets.append({key: value for key, value in variant.items() if in_facet(key)})
    filled["variant"] = [json.dumps(variant, sort_keys=True) for variant in variants]
    places = zip(*(filled[key] for key in ("model", "task", "precision")), facets, strict=True)
    filled["facet"] = [json.dumps(place, sort_keys=True) for place in places]


def _take_measure(filled: pd.DataFrame, by_id: pd.DataFrame) -> None:
    """Adds each run's `measure`, and `merit`, what chose its best step, larger if better.

    The columns of accuracies have the measure's values, whatever it is.
    """
    filled["measure"] = "accuracy"
    for name in MEASURES[1:]:
        keys = [f"best/{split}_{name}" for split in ("val", "test")]
        found = by_id.reindex(columns=keys).reindex(filled["run_id"]).reset_index(drop=True)
        mine = filled["val_accuracy"].isna() & found[keys[0]].notna()
        filled.loc[mine, "measure"] = name
        for column, key in zip(("val_accuracy", "test_accuracy"), keys, strict=True):
            filled[column] = filled[column].where(~mine, pd.to_numeric(found[key]))
    merit = filled["val_accuracy"] * np.where(filled["measure"].isin(LOWER), -1, 1)
    chosen = filled["val_macro_f1"].fillna(-filled["val_best_loss"])
    filled["merit"] = chosen.fillna(merit)


def measure_of(setting: pd.DataFrame) -> str:
    """What the runs of one setting are measured by."""
    return next((name for name in setting["measure"] if name != "accuracy"), "accuracy")


def choose(filled: pd.DataFrame) -> pd.DataFrame:
    """The rows with `chosen`, whether the row's learning rate is its setting's, and the setting's `at_edge`.

    `at_edge`: the chosen rate is the smallest or the largest of its grid, or of the rates that most seeds have ended.
    Where no run of a setting has finished nothing is chosen.
    """
    marked = filled.assign(chosen=False, at_edge=False)
    for _, setting in filled.groupby(SETTING, sort=False, dropna=False):
        lr, at_edge = _best_rate(setting)
        marked.loc[setting.index, "chosen"] = setting["lr"] == lr
        marked.loc[setting.index, "at_edge"] = at_edge
    return marked


def _best_rate(setting: pd.DataFrame) -> tuple[float | None, bool]:
    """The rate that the module's rule chooses, None if no run has finished, and whether it is at an edge."""
    fractions = measure_of(setting) == "accuracy" and setting["val_best_loss"].isna().all()
    finished = setting["status"] == "finished"
    if not finished.any():
        return None, False
    lost = 0.0 if fractions else np.inf
    losses = (
        (-setting["merit"])
        .where(finished, lost)
        .where(finished | (setting["status"] == "collapsed"))
    )
    ended = setting.assign(loss=losses)
    edges = {
        setting["lr"].min(),
        setting["lr"].max(),
        *_most_ended(ended, "lr", "loss").index[[0, -1]],
    }
    can_be_chosen = ended["lr"].isin(setting.loc[finished, "lr"])
    lr = float(ranked(ended[can_be_chosen], "lr", "loss").index[0])
    return lr, lr in edges and setting["lr"].nunique() > 1


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


def over_seeds(runs: pd.DataFrame, *more: str) -> pd.DataFrame:
    """One row per setting, or per setting and `more`, as `seed`.

    Returns:
        The columns SETTING, `more` and VARIED; `facet`; `lr` (NaN without one), `at_edge`; `n` and `seeds`, the seeds
        whose run at that rate has finished and those expected, 1 of the untrained model; `test_mean`, `test_std`
        (ddof 1), `val_mean`, `val_std` over the n seeds, fractions; means of `val_loss`, `merit`; medians of MEDIANS;
        `collapsed`, seeds whose run at that rate is so, or whose whole grid where there is no rate; `status`:
        `finished` if n > 0, `collapsed` if all seeds are, else the first other one; `grid`, the runs of all learning
        rates, and `lacking`, those of them that have not ended; `run_ids` of the n runs.
    """
    rows = []
    for _, setting in runs.groupby([*SETTING, *more], sort=False, dropna=False):
        first = setting.iloc[0]
        seeded = first["optimizer"] != ZERO_SHOT
        grid = setting if seeded else setting[setting["seed"] == first["seed"]]
        grid = grid.sort_values("seed", kind="stable")
        at_rate = grid[grid["chosen"]].drop_duplicates("seed")
        ended = at_rate if len(at_rate) else grid
        collapsed = (ended["status"] == "collapsed").groupby(ended["seed"]).all()
        others = [status for status in ended["status"] if status != "collapsed"]
        finished = at_rate[at_rate["status"] == "finished"]
        rows.append(
            {
                **first[[*SETTING, *more, *VARIED]],
                "facet": first["facet"],
                "measure": measure_of(setting),
                "lr": at_rate["lr"].iloc[0] if len(at_rate) else np.nan,
                "at_edge": bool(first["at_edge"]),
                "n": len(finished),
                "seeds": grid["seed"].nunique(),
                **{
                    f"{short}_{words}": getattr(finished[f"{short}_accuracy"], words)()
                    for short in ("test", "val")
                    for words in ("mean", "std")
                },
                "val_loss": finished["val_loss"].mean(),
                "merit": finished["merit"].mean(),
                **{key: finished[key].median() for key in MEDIANS},
                "collapsed": int(collapsed.sum()),
                "status": "finished" if len(finished) else (others or ["collapsed"])[0],
                "grid": len(grid),
                "lacking": int(grid["status"].isin(STATUSES[2:]).sum()),
                "run_ids": " ".join(finished["run_id"]),
            }
        )
    return pd.DataFrame(rows, columns=[*SETTING, *more, *VARIED, *OVER_SEEDS])


def shortfall(filled: pd.DataFrame, wanted: Mapping[str, int] | None = None) -> list[str]:
    """A sentence per sweep that lacks cells: how many, why, and what would run them. Empty if nothing lacks.

    A collapsed run is a result, not a gap. `wanted`: how many runs a sweep has, where more may be wanted than were
    started.
    """
    sizes, sentences = wanted or {}, []
    for sweep in dict.fromkeys([*filled["sweep"], *sizes]):
        cells = filled[filled["sweep"] == sweep]
        size = max(len(cells), sizes.get(sweep, 0))
        counts = {s: int((cells["status"] == s).sum()) for s in STATUSES[2:]}
        counts["missing"] += size - len(cells)
        lacking = sum(counts.values())
        if lacking:
            why = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
            text = f"{lacking} of {size} runs of {sweep} lack ({why})"
            if lacking > sum(counts[status] for status in SPOILED):
                text += _remedy(sweep, cells)
            for status, words in SPOILED.items():
                ids = ", ".join(cells.loc[cells["status"] == status, "run_id"].head(3))
                text += f"; {words} ({ids})" if ids else ""
            sentences.append(text)
    return sentences


def _remedy(sweep: str, cells: pd.DataFrame) -> str:
    """What makes the runs of a sweep that there are not yet; of a typed one the command of the first."""
    open_ = cells[cells["status"].isin(STATUSES[2:4])]
    typed = [text for text in open_["command"] if text and "sweep=" not in text]
    if typed:
        return f": `{typed[0]}` makes the first"
    return f": `{command(sweep)}` makes them"


def command(sweep: str) -> str:
    """What makes the runs of a sweep that there are not yet."""
    return f"zo submit {typed(sweep)[0]}"


def typed(sweep: str) -> tuple[str, str]:
    """How a sweep, or a stage of one, is typed; and the name of its file, empty without one."""
    files = [path.stem for path in (ROOT / "conf" / "sweep").glob("*.yaml")]
    file = max((name for name in files if f"{sweep}_".startswith(f"{name}_")), key=len, default="")
    stage = f" stage={sweep[len(file) + 1 :]}" * (file not in ("", sweep))
    return f"sweep={file or sweep}{stage}", file


def of_majority(labels: str) -> tuple[float, float]:
    """Accuracy and macro F1 of always predicting the largest class of the test examples."""
    counts = [labels.count(label) for label in set(labels)]
    share = max(counts) / len(labels)
    return share, 2 * share / (1 + share) / len(counts)


def right_answers(run: Mapping[Any, Any]) -> Any:
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
