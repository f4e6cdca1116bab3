"""What a person sees of runs, also of several in one process: one that fails ends no other, and a table ends them."""

import re
import shlex
import signal

import pytest

from tests.support.runs import MADE
from tests.support.victims import At, armed
from zo.run.logs.tracking import read_status
from zo.run.multirun import Multirun, differences
from zo.run.signals import CTRL_C
from zo.run.store import lock
from zo.run.store.directory import directory_of, freeze

START = "Read this review and say whether the film is"


def test_runs_that_cannot_be_made_or_have_a_defect_end_no_others_and_a_table_has_the_rest(
    make_run, before_steps, capsys
):
    """A cause that runs share is tried once and said once."""
    before_steps(lambda session, step: session.assembly.optimizer.seed == 7 and 1 / 0)
    bad, nowhere = "task.labels=[8,9]", "task.data_files.train=/no/such/file.csv"
    grid = [(cause, f"seed={seed}") for cause in (nowhere, bad) for seed in (0, 1, 2)]
    grid += [(f"seed={seed}",) for seed in (7, 0, 1)]
    multirun = Multirun([make_run(*choice, "steps=1") for choice in grid])
    assert multirun.run() == 1
    shown = capsys.readouterr()
    assert shown.err.count("task.labels: row ") == 1
    assert shown.err.count("there is no file") == 1
    assert "not tried: 2 runs with the same task and model" in shown.out
    assert not re.search("run [23] of 9", shown.out), "they are not begun"
    lines = shown.out.splitlines()
    assert lines[0].startswith("9 runs, one after the other; they differ in ")
    assert "run 8 of 9: " in shown.out
    heading, *rows = lines[lines.index("") + 1 : -4]
    assert heading.split()[-5:] == ["test", "val.", "step", "in", f"{multirun.runs[0].out}/"]
    for i, row in zip((7, 8), rows, strict=True):
        test = f"{multirun.summaries[i]['best/test_accuracy']:.1%}"
        assert (row.split()[-4], row.split()[-1]) == (test, directory_of(multirun.runs[i]).name)
    error = "ZeroDivisionError: division by zero"
    endings = (
        "2 of 9 runs ended, 7 failed",
        r"failed: run 1 of 9: train=/no/such/file.csv .* and 2 others: task.data_files.train: there is no file.*",
        r"failed: run 4 of 9: .* and 2 others: task.labels: row .*",
        rf"failed: run 7 of 9: .* seed=7: {error}",
    )
    for ending, line in zip(endings, lines[-4:], strict=True):
        assert re.fullmatch(ending, line), line
    failed = directory_of(multirun.runs[6])
    assert read_status(failed) == {"run/status": "failed", "run/error": error}
    assert "1 / 0" in (failed / "error.txt").read_text()


@pytest.mark.process
def test_ctrl_c_stops_all_and_the_same_command_goes_on(make_run, capsys):
    runs = [make_run(f"seed={seed}") for seed in (0, 1, 2)]
    in_second_run = At(MADE, 7, number=signal.SIGINT)
    with armed(in_second_run):
        assert Multirun(runs).run() == CTRL_C
    shown = capsys.readouterr()
    assert "stopped at step 3, saved; the same command goes on from there" in shown.err
    assert shown.err.endswith("stopped; 1 ended, 2 to go; the same command goes on\n")
    assert "1 of 3 runs ended, 0 failed" in shown.out
    assert "run 3 of 3" not in shown.out
    assert Multirun(runs).run() == 0
    assert "goes on after step 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        (["optimizer=mezo", "optimizer=lozo"], [{"optimizer": "mezo"}, {"optimizer": "lozo"}]),
        (["lr=1e-3", "lr=1e-4"], [{"lr": "0.001"}, {"lr": "0.0001"}]),
        (["seed=0", "seed=0"], [{}, {}]),
        (["adapter=none", "adapter=lora lr=1e-4"], [{"adapter": "all"}, {"adapter": "lora"}]),
        (
            [f"'task.prompt=\"{START} {end}: {{text}}\"'" for end in ("good or bad", "worth it")],
            [{"prompt": "… good or bad: {text}"}, {"prompt": "… worth it: {text}"}],
        ),
        (
            [f"'task.prompt=\"{end} {START * 2} {{text}}\"'" for end in ("Is", "Was")],
            [{"prompt": f"{end} {START * 2}"[:40] + "…"} for end in ("Is", "Was")],
        ),
    ],
)
def test_what_differs_is_named_and_nothing_that_follows_from_it(make_run, grid, expected):
    runs = [make_run("optimizer=mezo", "lr=1e-4", *shlex.split(override)) for override in grid]
    assert differences(runs) == expected


def test_a_run_that_another_process_makes_is_no_failure(make_run, capsys):
    runs = [make_run(f"seed={seed}", "steps=1") for seed in (0, 1)]
    freeze(runs[0])
    with lock.held(directory_of(runs[0])):
        assert Multirun(runs).run() == 0
    said = capsys.readouterr().out
    assert "1 of 2 runs ended, 1 made by another process, 0 failed" in said
    assert said.count("run 1 of 2") == 2, "it is tried again at the end"


def test_a_file_that_is_replaced_meanwhile_fails_the_later_runs(
    make_run, before_steps, reviews_csv, tmp_path, capsys
):
    data = tmp_path / "own.csv"
    data.write_text(reviews_csv.read_text())

    def replace(session, step):
        data.write_text("\n".join(reviews_csv.read_text().splitlines()[:-3]) + "\n")

    before_steps(replace)
    given = f"task.data_files.train={data}", "steps=1"
    multirun = Multirun([make_run(f"seed={seed}", *given) for seed in (0, 1, 2)])
    assert multirun.run() == 1
    why = "task.data_files.train: the content has changed since this multirun began"
    assert [multirun.errors[i].startswith(why) for i in (1, 2)] == [True, True]
    (begun,) = (path.name for path in (tmp_path / "out").glob("bszo-*"))
    assert capsys.readouterr().out.count(begun) >= 1, "the list names the run that there is"
