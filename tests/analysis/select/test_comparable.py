from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from analysis.logs import local
from analysis.logs.fragments import with_history
from analysis.logs.frames import Frames, merge
from analysis.logs.run_file import LogError
from analysis.logs.sources import load
from analysis.select.comparable import one_grid
from analysis.select.trials import Trials


@pytest.fixture
def frames(quickstart: Path) -> Frames:
    return load([quickstart], cache_dir=None)


def changed(frames: Frames, run_id: str, **values: Any) -> Frames:
    """The frames with other values in one run's row."""
    runs = frames.runs.astype(object).set_index("run_id", drop=False)
    for key, value in values.items():
        runs.loc[run_id, key] = value
    return Frames(runs.reset_index(drop=True), frames.history, ())


def best(trials: Trials) -> list[float | None]:
    values = trials.table.loc[trials.table["chosen"], "forwards_to_best"].astype(object)
    return list(values.where(values.notna(), None))


def test_forwards_up_to_the_best_step(frames: Frames, quickstart: Path) -> None:
    selection = one_grid(frames, "quickstart")
    assert best(selection) == [0, 40, 120]
    torn = merge(
        with_history(fragment, fragment.history.filter(pc.field("step") < 20))
        for fragment in local.read([quickstart], cache_dir=None)
    )
    selection = one_grid(torn, "quickstart")
    assert best(selection) == [0, None, None]


@pytest.mark.parametrize(
    ("run_id", "values", "message"),
    [
        (
            "mezo-5",
            {"steps": 1000},
            r"runs of mezo differ in steps: 1000, 40; .*--where steps=1000",
        ),
        ("bszo-3", {"optimizer.k": 2.0}, r"runs of bszo differ in optimizer\.k: 2, nothing; "),
        (
            "mezo-5",
            {"seed": 1},
            r"runs of mezo differ in seed: 0, 1; choose one with --where seed=0",
        ),
        ("mezo-5", {"lr": 1e-4}, r"runs mezo-4 and mezo-5 are the same cell, mezo at lr 0.0001"),
        (
            "zero",
            {"model.name": "opt"},
            r"runs of the sweep differ in model\.name: opt, reviews-tiny",
        ),
        ("zero", {"test/labels": "0" * 20}, r"finished runs differ in test/labels: 0000"),
        ("zero", {"best/val_n": 5}, r"finished runs differ in best/val_n: 20, 5$"),
        ("zero", {"best/step": None}, r"run zero is finished but did not log best/step"),
        ("zero", {"optimizer.name": None}, r"run zero does not log its optimizer\.name"),
    ],
)
def test_runs_that_do_not_belong_together(
    frames: Frames, run_id: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(LogError, match=message):
        one_grid(changed(frames, run_id, **values), "quickstart")


@pytest.mark.parametrize("key", ["lr_index", "provenance.device", "out", "model.lr_grid.bszo"])
def test_what_decides_no_number_may_differ(frames: Frames, key: str) -> None:
    one_grid(changed(frames, "mezo-5", **{key: 7}), "quickstart")
