"""python -m benchmarks.frozen_blocks, from the command line to table and figure, on a small model."""

import pandas as pd
import pytest

from benchmarks import frozen_blocks

pytestmark = pytest.mark.process


def test_from_the_command_line_to_table_and_figure(tmp_path, monkeypatch, reviews_csv):
    data = f"task.data_files.train={reviews_csv}"
    monkeypatch.setattr(frozen_blocks, "BLOCKS", 2)
    monkeypatch.setattr(frozen_blocks, "RUN", ["model=reviews-tiny", *frozen_blocks.RUN[2:], data])
    frozen_blocks.main(["--trained", "1", "2", "--rounds", "1", "--out", str(tmp_path)])
    found = pd.read_csv(tmp_path / "frozen_blocks.csv").set_index("trained")
    assert found.notna().all(axis=None)
    assert "| 1 " in (tmp_path / "frozen_blocks.md").read_text()
    assert (tmp_path / "frozen_blocks.png").stat().st_size > 5_000
