"""The cells of sweeps, and when they are asked for anew."""

import subprocess

from analysis.select import sweep_cells


def test_cells_are_asked_for_anew_when_code_is_edited_and_when_it_is_committed(
    tmp_path, monkeypatch
):
    """Uncommitted code is part of a run's id: a commit changes ids, though no file."""
    code = tmp_path / "src" / "zo" / "weights" / "own.py"
    code.parent.mkdir(parents=True)
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "mine.yaml").touch()

    def git(*words):
        as_someone = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", tmp_path, *as_someone, *words], check=True)

    asked = []
    monkeypatch.setattr(sweep_cells, "ROOT", tmp_path)
    monkeypatch.setattr(sweep_cells, "_ask", lambda sweeps: asked.append(code.read_text()) or [])

    def times():
        sweep_cells.cells(["mine"], tmp_path / "cache")
        sweep_cells.cells(["mine"], tmp_path / "cache")
        return len(asked)

    git("init", "-q")
    code.write_text("a = 1\n")
    git("add", "src")
    git("commit", "-qm", "first")
    assert times() == 1, "and then it is kept"
    code.write_text("a = 2\n")
    assert times() == 2
    git("commit", "-qam", "second")
    assert times() == 3
