"""Which lines of manifests count: the newest data of a panel, the newest settings of a method, the newest of a cell."""

from typing import Any

from analysis.logs.manifests import CODE, cells

LINE = {"model": "m", "task": "t", "precision": "fp32", "sweep": "s", "steps": 9, "settings": "a"}


def line(run_id: str, day: int, **more: Any) -> dict[str, Any]:
    known = {"optimizer": "mezo", "seed": 0, "lr": 1e-3, "inputs": {"task.path": "old"}}
    return LINE | known | {"run_id": run_id, "written": f"2026-01-{day:02d}"} | more


def current(*lines: dict[str, Any]) -> list[str]:
    frame = cells(lines)
    assert sorted(frame["run_id"]) == sorted(one["run_id"] for one in lines), "none is lost"
    return sorted(frame.loc[frame["current"], "run_id"])


def test_runs_of_other_data_are_replaced_for_all_methods_and_seeds():
    old = [line(f"{m}{s}", 1, optimizer=m, seed=s) for m in ("mezo", "bszo") for s in (0, 1)]
    new = line("new", 2, inputs={"task.path": "new"})
    assert current(*old, new) == ["new"]
    assert current(new, *old) == ["new"], "by time, not by place"
    assert current(*old, new | {"task": "u"}) == ["bszo0", "bszo1", "mezo0", "mezo1", "new"]
    grid = {"variant": {"task.path": "b.csv"}}  # the data are what the sweep varies
    assert current(*old[:1], new | grid) == ["mezo0", "new"]


def test_edited_code_replaces_the_methods_own_runs_alone():
    old = [line(m, 1, optimizer=m) for m in ("mezo", "bszo")]
    edited = line("new", 2, seed=1, inputs={"task.path": "old", CODE: "x"})
    assert current(*old, edited) == ["bszo", "new"]
    assert current(*old, line("new", 2, seed=1, settings="b")) == ["bszo", "new"]


def test_the_newest_line_of_a_cell_counts_and_a_comparison_never_mixes_changed_settings():
    assert current(line("a", 1), line("b", 2, steps=3)) == ["b"]
    names = {"arm": "mezo", "equivalence_margin": 0.1}, {"line": "mezo", "smallest": 0.1}
    assert current(line("a", 2, **names[0]), line("b", 1, **names[1])) == ["a"], (
        "an older version's"
    )
    short = {"changed": ["steps"], "variant": {"steps": 4}, "steps": 4}
    assert current(line("a", 1), line("b", 2, **short)) == ["a", "b"], "two rows of a table"
    both = (line("a", 1, line="mezo"), line("b", 2, line="mezo", seed=1, **short))
    assert current(*both) == ["b"]


def test_a_comparisons_last_stage_has_one_setting_a_line():
    of = {"arm": "mezo", "chosen": True}
    old = [line(f"old{s}", 1, seed=s, **of) for s in (1, 2)]
    new = line("new", 2, seed=1, lr=1e-4, **of)
    eps = line("eps", 3, seed=1, lr=1e-4, variant={"optimizer.eps": 0.1}, **of)
    other = line("other", 1, **of | {"arm": "lozo"})
    assert current(*old, new, other) == ["new", "other"]
    assert current(*old, new, eps) == ["eps"]
    assert current(*(one | {"chosen": None} for one in (*old, new))) == ["new", "old1", "old2"]


def test_a_run_is_one_cell_of_a_sweep_that_later_commands_extend_by_seeds():
    """The untrained run has no seed: each command names it under its own first one."""
    assert current(*(line("zero", day, seed=day, lr=0.0) for day in (1, 2, 3))) == ["zero"]
