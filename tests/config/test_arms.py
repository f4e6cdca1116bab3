"""Sweeps of lines: every setting of every method, chosen settings, and a method of one's own by its name."""

import json
import re
import shlex
import shutil
from dataclasses import dataclass, replace

import pandas as pd
import pytest
import yaml

from analysis.logs import manifests, sources
from analysis.logs.run_file import LogError
from analysis.report import command
from analysis.report import comparison as report
from analysis.report.comparison import comparison
from analysis.report.markdown import write_record
from analysis.select.cells import fill
from analysis.select.comparison import LOSSES, SHARES, run_losses
from launch import stages
from launch.sweep import Sweep, recorded
from tests.analysis.make_frames import STEPS, composed, made_frames
from tests.config.test_composition import by_hydra
from zo import config
from zo.config import ConfigError, arms, command_line
from zo.optim import OPTIMIZERS, Method
from zo.optim.config_spsa import MeZOConfig
from zo.run.store.rows import evaluates

config.register()
TUNE = ("sweep=compare", "stage=tune")


def named(*typed):
    found = command_line.read([*TUNE, *typed], multirun=True).cells
    return [
        (line.name, run.seed, run.lr, getattr(run.optimizer, "eps", None)) for run, line in found
    ]


@pytest.mark.process  # composes 864 cells one by one, too: nine seconds
def test_every_line_has_the_same_number_of_settings_and_each_is_as_hydra_composes_it():
    found = command_line.read(TUNE, multirun=True).cells
    counts = pd.Series([line.name for _, line in found]).value_counts()
    assert counts.pop("zero_shot") == 1
    assert set(counts) == {15}
    assert [line.name for _, line in found if line.role == "base"] == ["mezo"] * 15
    common = ["seed=101", "model=reviews-tiny", "task=rotten_tomatoes", "precision=fp32"]
    for run, line in (found[7], found[-1]):
        assert run == by_hydra([TUNE[0], *common, *line.overrides])


def test_a_stage_is_chosen_by_its_name_and_the_last_one_without():
    def seeds(*typed):
        made = Sweep.of(["sweep=reward", *typed, "hydra.sweeper.stored_runs=null"])
        also = {run.cfg.task.also is None for run in made.runs}
        return made.name, {run.cfg.seed for run in made.runs}, also

    assert seeds("stage=tune") == ("reward_tune", {101}, {True})
    assert seeds() == seeds("stage=report") == ("reward", {1, 2, 3, 4, 5}, {False})
    for typed, said in (
        (["sweep=reward", "stage=again"], "stage=again: must be one of tune, report"),
        (["sweep=quickstart", "stage=tune"], "stage=tune: is for a sweep with stages"),
        (["stage=tune"], "stage=tune: is for a sweep with stages"),
        (["sweep=compare_bf16_tune"], "stage=, as sweep=compare_bf16 stage=tune"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            command_line.read(typed, multirun=True)


def test_stages_are_made_in_order_each_with_what_the_ones_before_it_chose(capsys):
    def said(sweep):
        code = stages.main([sweep, "--dry-run"])
        return code, [shlex.split(line)[1:] for line in capsys.readouterr().out.splitlines()]

    name = "compare_smollm2"
    tune, again = f"{name}_tune", f"{name}_tune_best"
    assert said(name) == (0, [
        ["train", "-m", f"sweep={name}", "stage=tune"],
        ["choose", again, "--of", tune, "--best", "2"],
        ["train", "-m", f"sweep={name}", "stage=tune_best"],
        ["choose", name, "--of", tune, again, "--best", "1"],
        ["train", "-m", f"sweep={name}", "stage=report"],
        ["tables", name],
    ])  # fmt: skip
    assert len(said("reward")[1]) == 4
    assert [stages.main([name]) for name in ("quickstart", "nothing")] == [2, 2]


@pytest.mark.process  # seconds
def test_a_line_has_the_seeds_that_its_stage_gives_it_and_its_row_says_so(conf, monkeypatch):
    shutil.copytree(command.ROOT / "results" / "settings", conf / "settings")
    again = "sweep=compare_smollm2_long hydra.sweeper.stored_runs=null"
    cells = composed(again.removeprefix("sweep="))
    seeds = {"mezo": 13, "bszo": 13, "mezo_adam": 13, "lozo": 13, "tezo": 3, "adam": 3}
    assert cells[cells["steps"] > 0].groupby("line").size().to_dict() == seeds
    assert len(Sweep.of([*again.split(), "seed=1,4"]).runs) == 6 + 4 + 1
    frames = made_frames(cells)
    cells["steps"] = cells["steps"].clip(upper=STEPS)
    frame, table, _ = comparison("compare_smollm2_long", fill(cells, frames.runs), frames)
    shown = {row["line"].text: row["seeds"] for row in table.frame.to_dict("records")}
    assert (shown["BSZO"].text, shown["BSZO"].notes) == ("13", ())
    assert (shown["TeZO"].text, *shown["TeZO"].notes) == ("3", report.FEWER.format(3, "MeZO"))
    rows = frame.set_index("line")
    assert rows.loc["bszo", "minimum_detectable_effect"] < rows.loc["tezo", "minimum_detectable_effect"]  # fmt: skip
    path = conf / "sweep" / "compare_smollm2_long.yaml"
    text, right = path.read_text(), "only: {tezo: {seed: [1, 2, 3]}, "
    with pytest.raises(ConfigError, match="optimizer=tezo seed=4"):
        Sweep.of([*again.split(), "optimizer=tezo", "seed=4"])
    for key, wrong in (
        ("only=tezzo", "tezzo: {seed: [1]}"),
        ("only.tezo.seed=33", "tezo: {seed: [1, 33]}"),
        ("only.tezo.steps=1", "tezo: {steps: [1]}"),
    ):
        other = shutil.copytree(conf, conf.with_name(key))  # a directory is read once
        (other / "sweep" / path.name).write_text(text.replace(right, f"only: {{{wrong}, "))
        monkeypatch.setattr(command_line, "CONFIG_DIR", other)
        with pytest.raises(ConfigError, match=re.escape(key)):
            Sweep.of(again.split())


def test_typed_values_choose_among_the_lines():
    one = ("optimizer=bszo", "optimizer.k=4", "lr=1e-4", "optimizer.eps=1e-3")
    assert named(*one) == [("bszo, k=4", 101, 1e-4, 1e-3)]
    assert named(*one, "seed=7,8") == [("bszo, k=4", seed, 1e-4, 1e-3) for seed in (7, 8)]
    with pytest.raises(ConfigError, match="optimizer=sgd"):
        named("optimizer=sgd")


def test_a_cells_command_makes_a_cell_of_the_same_comparison():
    """Settings that other lines vary are typed, too, and change nothing."""
    one = (*TUNE, "optimizer=bszo", "lr=3e-4", "optimizer.eps=1e-4", "optimizer.m=6")
    (cell,) = Sweep.of(one).manifest
    typed = cell["command"].split()[2:]
    assert "optimizer.k=2" in typed
    (again,) = Sweep.of(typed).manifest
    assert again == cell
    assert not again["changed"]


def test_a_stored_run_is_made_again_where_the_command_says_so():
    """As docs/reproducing.md types it."""
    typed = ("sweep=compare", "seed=12", "optimizer=mezo", "lr=1e-4")
    (again,) = Sweep.of([*typed, "hydra.sweeper.stored_runs=null"]).runs
    assert Sweep.of(typed).runs == []
    assert again.run_id in recorded(command.MEASURED / "compare" / "runs.parquet")


@pytest.mark.process  # seconds
def test_the_long_comparison_tunes_over_its_whole_budget_on_other_texts(tmp_path, monkeypatch):
    tuned = command_line.read(["sweep=compare_smollm2_long", "stage=tune"]).cells
    rates = pd.DataFrame({"line": line.name, "lr": run.lr} for run, line in tuned if run.steps)
    ratios = rates.groupby("line")["lr"].apply(lambda lr: (lr / lr.shift()).dropna())
    assert (rates["line"].value_counts() >= 4).all()
    assert ratios.between(1.7, 3.4).all()
    monkeypatch.setattr(arms, "SETTINGS", tmp_path)
    chosen = rates.drop_duplicates("line").assign(setting=[
        json.dumps({"lr": lr, "optimizer.eps": 1e-3}) for lr in rates.drop_duplicates("line")["lr"]])  # fmt: skip
    chosen.to_csv(tmp_path / "compare_smollm2_long.csv")
    reported = Sweep.of(["sweep=compare_smollm2_long", "hydra.sweeper.stored_runs=null"])
    assert len(reported.runs) == 4 * 13 + 2 * 3 + 1
    assert {tuple(cell["levels"]) for cell in reported.manifest} == {(0.65, 0.6, 0.57)}
    texts = [{run.task.train_set_seed for run in runs}
             for runs in ((run for run, _ in tuned), (run.cfg for run in reported.runs))]  # fmt: skip
    assert texts == [{1}, {0}]
    for run in (run.cfg for run in reported.runs if run.cfg.steps):
        at = [100 * step / run.steps for step in range(1, run.steps + 1) if evaluates(run, step)]
        assert len(at) == 13
        for share in SHARES:
            assert any(abs(one / share - 1) < 0.005 for one in at), (run.optimizer.name, share)


@dataclass
class ClipConfig(MeZOConfig):
    """A method of one's own."""

    name: str = "mezo_clip"

    run_by = "mezo.MeZO"


@pytest.fixture
def conf(own_conf, monkeypatch):
    """A copy of conf/ with a method of one's own, which joins the comparison by its name."""
    path = own_conf / "sweep" / "compare.yaml"
    sweep = yaml.safe_load(path.read_text())
    sweeper = sweep["hydra"]["sweeper"]
    sweeper["arms"] = {name: sweeper["arms"][name] for name in ("mezo", "bszo")}
    sweeper["arms"]["mezo_clip"] = None
    sweeper["references"] = {name: sweeper["references"][name] for name in ("zero_shot", "adam")}
    path.write_text("# @package _global_\n" + yaml.safe_dump(sweep, sort_keys=False))
    monkeypatch.setitem(OPTIMIZERS, "mezo_clip", Method(ClipConfig, "MeZOClip", ".mezo:MeZO"))
    config.register()
    return own_conf


def test_a_method_of_ones_own_joins_by_its_name_and_is_tuned(conf):
    with pytest.raises(arms.NotChosenError, match="--of compare_tune compare_tune_best"):
        Sweep.of(["sweep=compare"])
    assert sum(name == "mezo_clip" for name, *_ in named()) == 15
    settings = conf / "settings" / "compare.csv"
    settings.parent.mkdir()
    setting = json.dumps({"lr": 1e-4, "optimizer.eps": 1e-3, "optimizer.beta2": 0.99})
    tuned = yaml.safe_load((conf / "sweep" / "compare.yaml").read_text())["hydra"]["sweeper"]
    every = [*tuned["arms"], *tuned["references"]]
    chosen = pd.DataFrame({"line": every, "setting": setting, "edge": "", "tried": 21})
    chosen[chosen["line"] != "mezo_clip"].to_csv(settings)
    with pytest.raises(arms.NotChosenError, match="mezo_clip"):
        Sweep.of(["sweep=compare"])
    chosen.to_csv(settings)
    assert len(composed("compare")) == 20 * (len(every) - 1) + 1


def test_settings_are_those_that_the_recorded_runs_choose_and_no_stage_without_runs_chooses(
    conf, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    path, stage = conf / "settings" / "compare_smollm2_long.csv", "compare_smollm2_long_tune"
    choose = ["choose", path.stem, "--cache", str(tmp_path), "--of", stage]
    assert command.main(choose) == 0
    text = path.read_text()
    assert text == (command.ROOT / "results" / "settings" / path.name).read_text()
    record = ["record", str(tmp_path / "kept"), stage]
    for asked, why in (
        ([*choose, "compare_smollm2_long_again"], "there is no run of compare_smollm2_long_again"),
        ([*record, "quickstart"], "there is no run of quickstart"),
        ([*choose, "--best", "0"], "--best must be at least 1"),
    ):
        assert command.main(asked) == 2
        assert why in capsys.readouterr().err
    assert path.read_text() == text
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("status", ["finished", "unfinished"])
def test_a_page_shows_what_was_tuned_and_what_has_just_begun(conf, status):
    cells = composed("compare stage=tune")
    frames = made_frames(cells[:9], status=lambda cell: status)
    _, table, drawn = comparison("compare_tune", fill(cells, frames.runs), frames)
    assert (table.title, drawn) == ("compare_tune: reviews-tiny on Rotten Tomatoes, fp32", [])
    assert len(table.rows) == (status == "finished")


def test_recorded_runs_are_not_made_again_and_are_read_as_they_were(tmp_path, monkeypatch):
    lozo = (*TUNE, "optimizer=lozo")
    lines, path = Sweep.of(lozo).manifest, tmp_path / "runs.parquet"
    ids, cells = [line["run_id"] for line in lines], manifests.cells(lines)
    became = dict(zip(ids, ["finished", "collapsed", "finished", "unfinished"], strict=False))
    frames = made_frames(cells, status=lambda cell: became.get(cell["run_id"], "missing"))
    write_record(replace(frames, lines=lines), ["compare_tune"], tmp_path)
    with pytest.raises(LogError, match="compare_tune"):
        write_record(replace(frames, lines=lines[3:]), ["compare_tune"], tmp_path)
    read = sources.load([path], tmp_path)
    assert read.cells_of()["run_id"].tolist() == ids
    assert set(read.runs["run_id"]) == set(ids[:3])
    assert set(read.runs["optimizer.name"]) == {"lozo"}
    assert not read.runs[["lr", "optimizer.eps", "seed"]].isna().any(axis=None)
    done = cells[cells["run_id"].isin([ids[0], ids[2]])]
    before, after = (run_losses(fill(done, one.runs), one) for one in (frames, read))
    pd.testing.assert_frame_equal(before[LOSSES], after[LOSSES])
    monkeypatch.setattr(command_line.CommandLine, "stored_runs", path)
    assert [run.run_id for run in Sweep.of(lozo).runs] == ids[3:]
    newer = {"written": "2026-01-02", "command": "zo train out=elsewhere"}
    again = [line | newer for line in lines[:3]]
    write_record(replace(read, lines=[*again, *read.lines]), ["compare_tune"], tmp_path)
    twice = sources.load([path], tmp_path / "other").lines
    assert [line["run_id"] for line in twice] == ids, "a cell that was recorded before is one line"
