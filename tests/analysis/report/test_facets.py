"""A row is all that differs: in random grids of random keys every run has one row, and no number crosses test rows."""

import json
from itertools import product

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.report.sweep import method_frame
from analysis.select.cells import fill
from tests.analysis.make_frames import EXAMPLES, expected, made_frames

KEYS = {
    "optimizer.k": [1, 2],
    "optimizer.m": [2, 4],
    "optimizer.eps": [0.01, 0.1],
    "batch_size": [8, 16],
    "task.prompt": ["{text} A", "{text}\nB"],
    "task.path": ["a.csv", "b.csv"],
    "adapter": ["none", "lora"],
}


def grid(keys, seeds, methods) -> pd.DataFrame:
    """Every combination of the keys' values, and the untrained model of each facet."""
    combined = [dict(zip(keys, values, strict=True)) for values in product(*map(KEYS.get, keys))]
    measured = [{k: v for k, v in one.items() if k[:4] in ("task", "adap")} for one in combined]
    facets = [json.loads(text) for text in dict.fromkeys(map(json.dumps, measured))]
    zero = expected(optimizer=["zero_shot"], lr=[0.0], variant=facets).assign(steps=0)
    trained = expected(optimizer=methods, seed=seeds, variant=combined, lr=[1e-4, 1e-3])
    cells = pd.concat([trained, zero], ignore_index=True)
    return cells.assign(run_id=[f"run-{i}" for i in cells.index], command="python train.py lr=1e-4")


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(KEYS)), max_size=3, unique=True),
    st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True),
    st.sampled_from([["mezo"], ["bszo"], ["mezo", "bszo"]]),
)
def test_a_run_has_one_row_whose_runs_differ_in_the_seed_and_nothing_crosses_test_rows(
    keys, seeds, methods
):
    cells = grid(keys, seeds, methods)
    frames = made_frames(cells)
    tested = [
        json.dumps([variant.get(key) for key in ("task.prompt", "task.path")])
        for variant in map(json.loads, cells["variant"])
    ]
    place = {text: i for i, text in enumerate(dict.fromkeys(tested))}
    frames.runs["test/labels"] = [("0" * place[t] + "1" * EXAMPLES)[:EXAMPLES] for t in tested]
    filled = fill(cells, frames.runs)
    names = ["method", "panel", "apart", "lr"]
    for _, runs in filled.groupby(names, dropna=False):
        one = cells[cells["run_id"].isin(runs["run_id"])]
        assert one["variant"].nunique() == one["optimizer"].nunique() == 1
        assert one["seed"].is_unique
    frames.runs["best/test_predictions"] = frames.runs["test/labels"]
    frames.runs["best/test_accuracy"] = 1.0
    frame = method_frame(fill(cells, frames.runs))
    frame = frame[frame["method"] != "majority"]
    counted = [run for ids in frame["run_ids"] for run in ids.split()]
    assert len(counted) == len(set(counted)) == len(cells) - len(cells[cells["steps"] > 0]) // 2
    assert frame.loc[frame["method"] != "zero_shot", "gain_points"].notna().all()


def test_nothing_is_left_out_by_name_and_other_test_rows_give_no_gain():
    """k = 2 with m = 2 of one seed and m = 4 of another; two data sets, of which one has an untrained run."""
    variants = [{"optimizer.k": 2, "optimizer.m": m} for m in (2, 4)]
    cells = expected(optimizer=["bszo"], variant=variants)
    cells = cells.assign(seed=[0, 1], run_id=["a", "b"])
    frames = made_frames(cells)
    frame = method_frame(fill(cells, frames.runs))
    assert list(zip(frame["n"], frame["variant"], strict=True)) == [
        (1, "k = 2, m = 2"),
        (1, "k = 2, m = 4"),
    ]
    paths = [{"task.path": path} for path in ("a", "b")]
    zero = expected(optimizer=["zero_shot"], variant=paths[:1], lr=[0.0]).assign(steps=0)
    cells = pd.concat([zero, expected(optimizer=["mezo", "bszo"], variant=paths)])
    cells = cells.assign(run_id=list("zabcd"))
    frames = made_frames(cells)
    frame = method_frame(fill(cells, frames.runs)).set_index("run_ids")
    assert frame["gain_points"].notna().to_dict() == dict(
        zip("zabcd", (0, 1, 0, 1, 0), strict=True)
    )
    frames.runs.loc[frames.runs["run_id"] == "c", "test/labels"] = "1" * EXAMPLES
    frames.runs["best/test_predictions"] = frames.runs["test/labels"]
    frames.runs["best/test_accuracy"] = 1.0
    frame = method_frame(fill(cells, frames.runs)).set_index("run_ids")
    assert frame.loc["c", ["gain_points", "p_mezo"]].isna().all(), "other labels than mezo's"


def test_a_key_that_a_later_command_varies_is_one_of_the_earlier_runs_too():
    cells = expected(optimizer=["mezo"], variant=[{}, {"optimizer.eps": 0.1}], seed=[0, 1])
    cells["run_id"] = list("abcd")
    frames = made_frames(cells)
    frames.runs["optimizer.eps"] = [0.1, 0.1, 0.1, 0.1]
    cells["seed"] = [0, 1, 2, 3]
    (row,) = method_frame(fill(cells, frames.runs)).to_dict("records")
    assert (row["n"], row["variant"]) == (4, "optimizer.eps = 0.1")
