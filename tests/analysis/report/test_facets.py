"""A row is all that differs: in random grids of random keys every run has one row, and no number crosses test rows."""

import json
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.logs.frames import Frames
from analysis.logs.run_file import LogError
from analysis.report.sweep import grid_frame, method_frame
from analysis.select.cells import fill
from analysis.select.comparison import lines_frame, run_losses
from tests.analysis.make_frames import EXAMPLES, expected, made_frames

OF_PLACE: dict[str, list[Any]] = {
    "model": ["m", "n"],
    "precision": ["fp32", "bf16"],
    "task.path": ["a.csv", "b.csv"],
    "task.prompt": ["{text} A", "{text}\nB"],
    "task.split_seed": [0, 1],
    "task.train_size": [16, 32, 64],
    "task.label_words": ["no, yes", "bad, good"],
    "adapter": ["none", "lora"],
}
"""Keys that say what is measured, and on what."""
OF_METHOD: dict[str, list[Any]] = {
    "optimizer.k": [1, 2],
    "optimizer.m": [2, 4],
    "optimizer.eps": [0.01, 0.1],
    "batch_size": [8, 16],
}
NUMBERS = [
    *("lr", "at_edge", "n", "seeds", "collapsed", "val_accuracy", "test_accuracy", "test_std"),
    *("gain_points", "p_mcnemar", "p_mezo", "best_setting"),
]
COLUMNS = ("model", "precision")
LOGGED = [*("test/labels", "best/test_predictions", "best/test_accuracy", "best/val_accuracy")]


def grid(keys, seeds, methods) -> pd.DataFrame:
    """Every combination of the keys' values, and the untrained model of each facet."""
    values = OF_PLACE | OF_METHOD
    combined = [dict(zip(keys, v, strict=True)) for v in product(*map(values.get, keys))]
    of_place = [{key: one[key] for key in one if key in OF_PLACE} for one in combined]
    places = [json.loads(text) for text in dict.fromkeys(map(json.dumps, of_place))]
    parts = []
    for variants, what in (
        (combined, {"optimizer": methods, "seed": seeds, "lr": [1e-4, 1e-3]}),
        (places, {"optimizer": ["zero_shot"], "lr": [0.0]}),
    ):
        for variant in variants:
            own = {key: variant[key] for key in COLUMNS if key in variant}
            rest = {key: value for key, value in variant.items() if key not in own}
            parts.append(expected(variant=[rest], **what).assign(**own))
    cells = pd.concat(parts, ignore_index=True)
    cells.loc[cells["optimizer"] == "zero_shot", "steps"] = 0
    return cells.assign(run_id=[f"run-{i}" for i in cells.index], command="zo train -m lr=1e-4")


def place_of(cell) -> str:
    """What a cell measures, and on what, told without the product's code."""
    variant = json.loads(cell["variant"])
    of_place = {key: value for key, value in variant.items() if key in OF_PLACE}
    return json.dumps([cell["model"], cell["precision"], of_place])


def ran(cells, chance, other) -> Frames:
    """Runs with chance accuracies and ends, on the labels of their data; of a method `other` on other labels."""
    draw = np.random.default_rng(chance)
    ends = draw.choice(["finished", "collapsed", "missing"], len(cells), p=[0.8, 0.1, 0.1])
    became = dict(zip(cells["run_id"], ends, strict=True))
    frames = made_frames(cells, lambda cell: became[cell["run_id"]])
    data = frames.runs.reindex(columns=["task.path", "task.split_seed", "task.label_words"])
    shifts = 2 * pd.Series(map(str, data.to_numpy().tolist())).factorize()[0]
    said = []
    for shift in shifts + (frames.runs["optimizer.name"] == other):
        labels = np.array(list(("0" * (5 + shift) + "1" * EXAMPLES)[:EXAMPLES]))
        right = draw.random(EXAMPLES) < draw.choice((0.6, 0.8))
        answers = np.where(right, labels, np.where(labels == "0", "1", "0"))
        values = "".join(labels), "".join(answers), right.mean(), draw.integers(400, 500) / 500
        said.append(dict(zip(LOGGED, values, strict=True)))
    return replace(frames, runs=frames.runs.assign(**pd.DataFrame(said, columns=LOGGED)))


@pytest.mark.process
@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(OF_PLACE | OF_METHOD)), max_size=3, unique=True),
    st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True),
    st.sampled_from([["mezo"], ["bszo"], ["mezo", "bszo"]]),
    st.integers(0, 10**6),
    st.sampled_from(["none", "zero_shot", "bszo", "mezo"]),
)
def test_a_run_has_one_row_and_a_places_numbers_are_those_it_has_alone(
    keys, seeds, methods, chance, other
):
    cells = grid(keys, seeds, methods)
    frames = ran(cells, chance, other)
    if frames.runs.empty:
        return
    filled = fill(cells, frames.runs)
    there = cells[cells["run_id"].isin(frames.runs["run_id"])]
    assert sorted(grid_frame(filled)["run_id"]) == sorted(there["run_id"])
    frame = method_frame(filled)
    trained = frame[frame["method"] != "majority"]
    names = ["model", "precision", "method", "variant"]
    assert not trained.duplicated(names).any()
    rows = there[["model", "precision", "optimizer", "variant"]].drop_duplicates()
    assert len(trained) == len(rows), "each run is of one row, and no row is of two"
    for ids in trained["run_ids"]:
        one = cells[cells["run_id"].isin(ids.split())]
        assert one.drop(columns=["run_id", "seed"]).drop_duplicates().shape[0] <= 1
        assert one["seed"].is_unique
    labels = frames.runs.set_index("run_id")["test/labels"]
    places = cells.apply(place_of, axis=1)
    for _, at in cells.groupby(places):
        examples = at["run_id"].map(labels)
        for text in {*examples.dropna()}:  # in each place what each set of test examples has alone
            mine = at[examples.isna() | (examples == text)]
            alone = method_frame(fill(mine, frames.runs)).set_index("run_ids")
            own = alone[(alone.index != "") & (alone["status"] == "finished")]
            whole = trained[trained["run_ids"].isin(own.index)].set_index("run_ids")
            pd.testing.assert_frame_equal(whole.loc[own.index, NUMBERS], own[NUMBERS], check_dtype=False)  # fmt: skip
    largest = {max(text.count(c) for c in "01") / EXAMPLES for text in labels}
    assert set(frame[frame["method"] == "majority"]["test_accuracy"]) == largest


def test_nothing_is_left_out_by_name_and_other_test_rows_give_no_gain():
    """k = 2 with m = 2 of one seed and m = 4 of another, m = null; two data sets, one has an untrained run."""
    variants = [{"optimizer.k": 2, "optimizer.m": m} for m in (2, 4, None)]
    cells = expected(optimizer=["bszo"], variant=variants)
    cells = cells.assign(seed=[0, 1, 1], run_id=["a", "b", "c"])
    frame = method_frame(fill(cells, made_frames(cells).runs))
    assert sorted(frame["variant"]) == ["k = 2, m = 2", "k = 2, m = 4", "k = 2, m = null"]
    assert list(frame["n"]) == [1, 1, 1]
    paths = [{"task.path": path} for path in ("a", "b")]
    zero = expected(optimizer=["zero_shot"], variant=paths[:1], lr=[0.0]).assign(steps=0)
    cells = pd.concat([zero, expected(optimizer=["mezo", "bszo"], variant=paths)])
    cells = cells.assign(run_id=list("zabcd"))
    frames = made_frames(cells)
    frame = method_frame(fill(cells, frames.runs)).set_index("run_ids")
    gains = {"z": False, "a": True, "b": False, "c": True, "d": False}
    assert frame["gain_points"].notna().to_dict() == gains
    frames.runs.loc[frames.runs["run_id"] == "c", "test/labels"] = "1" * EXAMPLES
    frame = method_frame(fill(cells, frames.runs)).set_index("run_ids")
    assert frame.loc["c", ["gain_points", "p_mezo"]].isna().all(), "other labels than mezo's"


def test_lines_on_other_test_examples_have_no_difference():
    cells = pd.concat(
        [
            expected(optimizer=[line], lr=[1e-4], seed=[1, 2, 3]).assign(line=line, role=role)
            for line, role in (("mezo", "base"), ("bszo", "family"), ("es", "family"))
        ],
        ignore_index=True,
    ).assign(steps=40, levels="[0.8]")
    frames = made_frames(cells, loss=lambda cell: 0.5)
    other = frames.runs["optimizer.name"] == "es"
    frames.runs.loc[other, "test/labels"] = "1" * EXAMPLES
    filled = fill(cells.assign(equivalence_margin=0.01), frames.runs)
    rows = lines_frame(run_losses(filled, frames), filled).set_index("line")
    for key in ("gap", "p_value", "ratio_0"):
        assert rows[key].notna().to_dict() == {"mezo": False, "bszo": True, "es": False}
    assert np.isfinite(rows["passes_0"]).all()
    again = cells.assign(precision="bf16", run_id=cells["run_id"] + "b")
    both = pd.concat([cells, again], ignore_index=True)
    with pytest.raises(LogError, match=r"mezo of s has 2 runs of one setting and seed, .*\(bf16\)"):
        run_losses(fill(both, made_frames(both).runs), made_frames(both))
    cells.loc[cells["line"] == "es", "variant"] = '{"task.path": "b.csv"}'
    with pytest.raises(LogError, match=r"b.csv"):
        run_losses(fill(cells, frames.runs), frames)


@pytest.mark.parametrize(
    ("key", "value", "logged", "other"),
    [("optimizer.eps", 0.1, 0.1, 0.2), ("adapter.layers", [0], "[0]", [0, 1]), ("batch_size", {"a": 1}, '{"a": 1}', 8),
     ("patience", None, None, 1), ("adapter.layers", "last:1", "last:1", [0])],
)  # fmt: skip
def test_a_key_that_a_later_command_varies_is_one_of_the_earlier_runs_too(
    key, value, logged, other
):
    """A frame has lists as JSON text, a manifest as they are."""
    cells = expected(optimizer=["mezo"], variant=[{}, {key: value}, {key: other}], seed=[0, 1])
    cells["run_id"] = list("abcdef")
    frames = made_frames(cells.assign(variant="{}"))
    frames.runs[key] = pd.Series([logged] * 4 + [None] * 2, dtype=object)
    frames.runs["nulls"] = key if logged is None else ""
    cells["seed"] = [0, 1, 2, 3, 0, 1]
    rows = method_frame(fill(cells, frames.runs))
    assert dict(zip(rows["variant"], rows["n"], strict=True)) == {
        f"{key} = {'null' if value is None else value}": 4,
        f"{key} = {other}": 2,
    }
