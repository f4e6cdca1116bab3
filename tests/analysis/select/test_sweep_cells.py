from pathlib import Path

import pytest

from analysis.select import sweep_cells


def test_cells_of_the_suite_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    answer = sweep_cells._ask
    monkeypatch.setattr(sweep_cells, "_ask", lambda names: asked.append(names) or answer(names))
    frame = sweep_cells.cells(["quickstart", "figure1"], tmp_path)
    assert list(frame.columns) == list(sweep_cells.COLUMNS)
    assert list(frame["sweep"].unique()) == ["quickstart", "figure1"]
    quickstart = frame[frame["sweep"] == "quickstart"]
    assert list(quickstart["optimizer"]) == ["zero_shot"] + ["mezo"] * 3 + ["bszo"] * 3
    assert quickstart["lr"].iloc[0] == 0.0
    again = sweep_cells.cells(["figure1"], tmp_path)
    assert asked == [["quickstart", "figure1"]]
    assert again.equals(frame[frame["sweep"] == "figure1"].reset_index(drop=True))
    monkeypatch.setattr(sweep_cells, "DECIDING", (*sweep_cells.DECIDING, "README.md"))
    sweep_cells.cells(["quickstart"], tmp_path)  # as if a file that decides had changed
    assert asked[1:] == [["quickstart"]]
    assert len(list(tmp_path.rglob("*.json"))) == 1
