"""What a person sees: nothing is cut or wrapped within a word on a narrow terminal, and nothing wrapped in a file."""

import io
import re

import pytest
from rich.console import Console

from zo.run import progress
from zo.run.progress import Progress


@pytest.mark.parametrize("width", [50, 60, 80, 120])
@pytest.mark.parametrize("steps", [600, 20_000])
def test_the_bar_and_its_time_left_fit_on_one_row(monkeypatch, width, steps):
    written = io.StringIO()
    terminal = {"file": written, "width": width, "force_terminal": True, "_environ": {}}
    monkeypatch.setattr(progress, "Console", lambda **given: Console(**given, **terminal))
    with Progress(steps) as shown:
        for _ in range(3):
            shown.advance(0.7123, "72.8%")
        shown._bars.refresh()
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue()).replace("\r", "\n")
    (row, *_) = [row for row in reversed(frames.splitlines()) if f"/{steps}" in row]
    assert len(row.rstrip()) <= width
    assert re.search(r"loss 0\.7123", row)
    assert re.search(r"(\d|-):(\d\d|--):(\d\d|--)$", row.rstrip())
    assert "…" not in row
    assert ("best val 72.8%" in row) == (width >= 80 or (width >= 60 and steps == 600))
