"""Printed and measured numbers side by side, on cells and runs small enough to check by hand."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.paper.printed_numbers import Paper, load
from analysis.report.paper_tables import layouts
from analysis.report.table import markdown
from analysis.select.cells import fill
from analysis.select.paper_cells import SWEEPS, beside, wanted
from tests.analysis.make_frames import PAPER_METHODS, composed, expected

TASKS = ("sst2", "rte", "cb", "wic", "trec")


def made(cells: pd.DataFrame, accuracies: Mapping[str, float | None]) -> pd.DataFrame:
    """The paper's cells beside runs of these test accuracies; None for a run that collapsed."""
    said = {"other": 0.5, **accuracies}.items()
    runs = pd.DataFrame(said, columns=["run_id", "best/test_accuracy"])
    collapsed = runs["best/test_accuracy"].isna()
    runs["status"] = collapsed.map({True: "collapsed", False: "finished"})
    runs[["best/val_accuracy", "best/step", "best/val_n", "best/test_n"]] = 0.5, 5, 20, 20
    return beside(small(cells["seed"].nunique()), fill(cells, runs))


def small(seeds: int) -> Paper:
    """The paper as if it had made one learning rate and so many seeds: cells need no larger grids here."""
    paper = load()
    rates = (paper.cells["quantity"] == "lr") & (paper.cells["position"] != "0")
    runs = (paper.cells["table"] == 11) & ~paper.cells["run"].isin(
        [str(i + 1) for i in range(seeds)]
    )
    return replace(paper, cells=paper.cells[~(rates | runs)].reset_index(drop=True))


def test_the_printed_tables_want_as_many_runs_as_the_sweeps_make():
    runs = wanted(load())
    assert sum(runs.values()) == 1489
    sweeps = composed("table4", "table5_d")["sweep"].value_counts()
    assert {name: runs[name] for name in sweeps.index} == sweeps.to_dict()
    cells = expected("table1", "roberta-large", task=TASKS, optimizer=PAPER_METHODS, seed=range(2))
    made_ = fill(cells, pd.DataFrame({"run_id": []}))
    row = one(beside(load(), made_), table=1, task="cb", method="mezo", quantity="mean")
    assert (row["here"], row["seeds"], row["lacking"]) == ("missing", 2, 25), "two seeds, one rate"


def one(frame: pd.DataFrame, **keys: Any) -> Any:
    for key, value in keys.items():
        frame = frame[frame[key] == value]
    (row,) = frame.to_dict("records")
    return row


def table1(seeds: int = 5) -> pd.DataFrame:
    return expected(
        "table1", "roberta-large", task=TASKS, optimizer=PAPER_METHODS, seed=range(seeds)
    )


def test_mean_and_sample_std_over_seeds():
    cells = table1()
    mezo = cells[(cells["task"] == "cb") & (cells["optimizer"] == "mezo")]["run_id"]
    accuracies = [0.80, 0.90, 0.85, 0.75, 0.95]
    frame = made(cells, dict(zip(mezo, accuracies, strict=True)))
    mean = one(frame, table=1, task="cb", method="mezo", quantity="mean")
    std = one(frame, table=1, task="cb", method="mezo", quantity="std")
    assert (mean["measured"], std["measured"]) == pytest.approx((85, np.sqrt(62.5)))
    assert mean["difference"] == pytest.approx(85 - 86.07)
    assert (mean["n"], mean["seeds"], mean["lacking"]) == (5, 5, 0)
    run3 = one(frame, table=11, task="cb", method="mezo", run="3")
    assert (run3["measured"], run3["difference"]) == pytest.approx((85.0, 85.0 - 91.07))
    assert one(frame, table=1, task="avg", method="mezo")["here"] == "missing"
    page = markdown(layouts(1, frame, {"table1": "most lack"})[0])
    assert "| 85.00 (±7.91; 5) |" in page
    assert "−1.07" in page
    assert "ᵃ most lack" in page


def test_an_average_without_the_worst_task_is_not_the_best():
    """Equal scores, but MeZO lost TREC, everybody's worst: its average is the highest, and no reason for bold."""
    cells = table1(seeds=1)
    more = {"bszo": 0.02, "lozo": 0.01}
    accuracies: dict[str, float | None] = {
        r.run_id: (0.3 if r.task == "trec" else 0.9) + more.get(r.optimizer, 0)
        for r in cells.itertuples()
    }
    accuracies["table1-trec-mezo-0.0001-0-{}"] = None
    frame = made(cells, accuracies)
    averages = frame[(frame["table"] == 1) & (frame["task"] == "avg")].set_index("method")
    means = averages[averages["quantity"] == "mean"]
    assert means["measured"]["bszo"] == pytest.approx((4 * 92 + 32) / 5)
    assert means["measured"]["mezo"] == means["measured"].max() == pytest.approx(90)
    assert set(means.index[means["here_bold"]]) == {"bszo", "lozo"}
    assert means["remark"]["mezo"] == "leaves out trec, which collapsed"
    page = markdown(layouts(1, frame, {})[0])
    assert r"| \* |" in page
    assert "leaves out trec, which collapsed" in page


def test_every_printed_number_stands_in_its_table_once():
    frame = made(table1(), {})
    for number in SWEEPS:
        shown: Counter[str] = Counter()
        tables = layouts(number, frame, {})
        for table in tables[:1] if number == 4 else tables:  # then ratios
            for row in table.rows:
                if row[table.names - 1] == "paper":
                    shown.update(cell.text for cell in row[table.names :] if cell.text)
        rows = frame[(frame["table"] == number) & (frame["quantity"] != "std")]
        assert shown == Counter(rows["printed"]), number


def test_bold_waits_for_the_whole_column_and_for_every_seed():
    cells = table1(seeds=2)
    score = {"mezo": 0.5, "mezo_adam": 0.9, "hizoo": 0.8, "lozo": 0.8, "bszo": 0.3, "bszo_b": 0.2}
    accuracies = {row.run_id: score[row.optimizer] for row in cells.itertuples()}
    frame = made(cells, accuracies | {"table1-rte-mezo_adam-0.0001-1-{}": None})
    bold = frame[(frame["table"] == 1) & frame["here_bold"] & (frame["quantity"] == "mean")]
    best = ["mezo_adam", "hizoo", "lozo"]  # a tie for the second place
    assert list(bold[bold["task"] == "cb"]["method"]) == best
    assert list(bold[bold["task"] == "rte"]["method"]) == best[1:]  # the best lost a seed
    assert "**90.00** (±0.00; 2)" in markdown(layouts(1, frame, {})[0])
    del accuracies["table1-cb-lozo-0.0001-0-{}"]
    frame = made(cells, accuracies)
    assert set(frame[(frame["table"] == 1) & frame["here_bold"]]["task"]) == {*TASKS} - {"cb"}


def test_ablations_take_their_own_sweep():
    ours: Any = {"optimizer": ["bszo"]}
    ks = [{"optimizer.k": k} for k in (1, 2, 4, 8)]
    part_a = expected("table5_a", "opt-1.3b", task=["sst2", "rte"], variant=ks, **ours)
    noise = [{"optimizer.adaptive_noise": on} for on in (True, False)]
    part_d = expected("table5_d", "opt-13b", task=["wsc"], variant=noise, **ours)
    noise_free = expected("table12_c", "opt-1.3b", variant=ks[-1:], **ours)
    cells = pd.concat([part_a, part_d, noise_free], ignore_index=True)
    frame = made(cells, {run: place / 100 for place, run in enumerate(cells["run_id"], start=1)})
    for percent, where in (
        (7, {"table": 5, "part": "a", "task": "rte", "k": "4"}),
        (7, {"table": 12, "part": "a", "task": "rte", "k": "4"}),
        (9, {"table": 5, "part": "d", "task": "wsc", "adaptive_noise": "with"}),
        (10, {"table": 5, "part": "d", "task": "wsc", "adaptive_noise": "without"}),
        (11, {"table": 12, "part": "c", "task": "rte", "k": "8"}),
    ):
        assert one(frame, **where)["measured"] == pytest.approx(percent)
    assert one(frame, table=5, part="b", task="rte", k="4")["here"] == "missing"
