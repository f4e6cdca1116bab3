"""A comparison's known answers: the choice of settings, edges, intervals, corrections and power."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint

from analysis.logs import committed
from analysis.logs.run_file import LogError
from analysis.report import comparison as report
from analysis.report.markdown import write_record
from analysis.report.table import markdown
from analysis.select.cells import fill
from analysis.select.comparison import (
    AREA,
    AT_END,
    choices,
    criterion_of,
    decide,
    lines_frame,
    run_losses,
    settings_file,
)
from analysis.stats.inference import (
    holm,
    minimum_detectable_effect,
    paired_estimates,
    sign_test,
    wilson_interval,
)
from tests.analysis.make_frames import RUN_ID, STEPS, expected, made_frames

RATES, EPS, STUDIES, LINES, SEEDS = (1e-5, 1e-4, 1e-3), (1e-4, 1e-3, 1e-2), 1000, 6, 10


def cells(lines, rates=RATES, seeds=(1, 2, 3), eps=EPS):
    """The cells of lines: name -> role, each with every rate, ε and seed; and the untrained model."""
    grid = {"lr": rates, "seed": seeds, "variant": [{"optimizer.eps": e} for e in eps]}
    none = expected("tuned", optimizer=["zero_shot"], lr=[0.0])
    found = [none.assign(line="zero_shot", role="other", steps=0)]
    for line, role in lines.items():
        own = expected("tuned", optimizer=[line.partition(",")[0]], run_id=line + RUN_ID, **grid)
        found.append(own.assign(line=line, role=role, steps=STEPS))
    return pd.concat(found, ignore_index=True).assign(equivalence_margin=0.01)


def ended(made, loss, status=lambda cell: "finished"):
    frames = made_frames(made, status=status, loss=loss)
    filled = fill(made, frames.runs)
    filled.loc[filled["steps"] == 0, "val_loss"] = 0.7
    return filled, frames


def best_at(lr, eps):
    """A loss that is lowest at one setting."""

    def loss(cell):
        of = json.loads(cell["variant"]).get("optimizer.eps", eps)
        return 0.3 + 0.1 * abs(np.log10((cell["lr"] or lr) / lr)) + 0.1 * abs(np.log10(of / eps))

    return loss


@pytest.mark.parametrize(
    ("lr", "eps", "edge"),
    [(1e-4, 1e-3, ""), (1e-5, 1e-3, "lr"), (1e-4, 1e-2, "eps"), (1e-3, 1e-4, "lr, eps")],
)
def test_the_best_setting_is_chosen_and_marked_at_an_edge(lr, eps, edge):
    made = cells({"mezo": "base"})
    runs = run_losses(*ended(made, best_at(lr, eps)))
    (chosen,) = choices(runs[runs["steps"] > 0]).to_dict("records")
    assert json.loads(chosen["setting"]) == {"lr": lr, "optimizer.eps": eps}
    assert (chosen["edge"], chosen["seeds"], chosen["tried"]) == (edge, 3, 27)


def test_only_settings_that_most_seeds_have_are_compared():
    made = cells({"mezo": "base"})
    lucky = (made["lr"] == 1e-5) & (made["seed"] > 1)  # its first seed alone was run
    filled, frames = ended(made[~lucky], lambda cell: 0.1 if cell["lr"] == 1e-5 else 0.5)
    runs = run_losses(filled, frames)
    best = choices(runs[runs["steps"] > 0], best=3)
    assert len(best) == 3
    assert not best["setting"].str.contains("1e-05").any()


def test_a_collapsed_seed_counts_with_the_loss_of_the_untrained_model_or_a_higher_one_of_its_own():
    made = cells({"mezo": "base", "bszo": "family"}, rates=(1e-4,), eps=(1e-3,))

    def status(cell):
        return "collapsed" if cell["line"] == "bszo" and cell["seed"] == 2 else "finished"

    # half of the way from 1, which is 0.75 or 1.3, and the seed's 0.02
    for loss, counted in ((0.5, 0.77), (1.6, 1.32)):
        filled, frames = ended(made, lambda cell, loss=loss: loss, status)
        runs = run_losses(filled, frames)
        lost = runs[runs["status"] == "collapsed"]["loss_100"].item()
        assert lost == pytest.approx(max(0.7, counted), abs=1e-3)
        row = lines_frame(runs, filled).set_index("line").loc["bszo"]
        assert (row["seeds"], row["collapsed"]) == (3, 1)
        assert row["gap"] == pytest.approx((lost - (loss + 0.02)) / 3, abs=1e-3)


@pytest.mark.parametrize(
    ("became", "failed", "said"),
    [("missing", None, "6 of 7"), ("unfinished", False, "6 of 7"), ("unfinished", True, "")],
)
def test_nothing_is_decided_before_every_run_has_ended(became, failed, said, tmp_path, capsys):
    """Neither by the table nor by its files, its record's or `lines_frame`; an error ends a run, too."""
    made = cells({"mezo": "base", "bszo": "family"}, rates=(1e-4,), eps=(1e-3,))
    last = made["run_id"].iloc[-1]
    losses = {"mezo": 0.5, "bszo": 0.4}
    frames = made_frames(
        made,
        lambda cell: became if cell["run_id"] == last else "finished",
        loss=lambda cell: losses.get(cell["line"], 0.7) + cell["seed"] / 1e4,
    )
    frames = replace(frames, lines=[_line(cell) for cell in made.to_dict("records")])
    frames.runs["failed"] = [failed if run == last else None for run in frames.runs["run_id"]]
    write_record(frames, ["tuned"], tmp_path / "kept")
    for there in (frames, committed.read(tmp_path / "kept" / "runs.parquet")):
        filled = fill(there.cells_of(["tuned"]), there.runs)
        paths = report.write_comparison("tuned", filled, there, tmp_path / "tables")
        text = capsys.readouterr().out
        table = pd.read_csv(tmp_path / "tables" / "comparison.csv")
        assert (f"{said} runs have ended; no loss and no verdict before all have." in text) == bool(
            said
        )
        if said:
            assert table.set_index("line").loc["bszo"].to_dict() == {"ended": 2, "runs": 3}
            assert "better" not in "".join(path.read_text() for path in paths) + text
            with pytest.raises(LogError, match=said):
                lines_frame(run_losses(filled, there), filled)
        else:
            row = table.set_index("line").loc["bszo"]
            assert row[["seeds", "verdict"]].tolist() == [2, "better"]
            assert table.set_index("line").loc["majority", "test"] == 50


def _line(cell):
    """The line of a manifest that says so."""
    return {**cell, "variant": json.loads(cell["variant"]), "changed": [], "inputs": {}}


def test_a_comparison_says_what_was_measured_and_what_is_missing():
    """Rewards are named and have exact answers; no run was evaluated at 12.5 %, and no levels were fixed."""
    made = cells({"mezo": "base", "es": "family"}, rates=(1e-4,), eps=(1e-3,))
    frames = made_frames(made, loss=lambda cell: -0.5)
    names = {"best/val_accuracy": "best/val_reward"}
    names |= {"best/test_accuracy": "eval/test_rewards/exact"}
    for rewarded, head, test in (
        (True, "Minus the validation reward", "test, exact %"),
        (False, "Validation loss (nats)", "test %"),
    ):
        runs = frames.runs.rename(columns=names if rewarded else {})
        frame, table, (figure, *_) = report.comparison("tuned", fill(made, runs), frames)
        text = markdown(table)
        assert text.count(head) == 1
        assert f"| {test} |" in text
        assert "Not recorded: 12.5 %, passes to a loss." in text
        assert "12.5 % |" not in text
        assert figure.frame["quantity"].iloc[0].lower() == head.lower()
        exact = runs.filter(regex="test_accuracy|exact").mean().item()
        assert frame["test"].mean() == pytest.approx(100 * exact, abs=5)


@pytest.mark.parametrize(
    ("edge", "ran", "decided"),
    [("lr", "0.001", 0), ("eps", "0.001", 1), ("", "0.001", 1), ("lr", "0.01", 1)],
)
def test_nothing_is_decided_against_a_base_whose_rate_is_at_the_edge(
    edge, ran, decided, tmp_path, monkeypatch
):
    """What is written of another setting than that of the runs says nothing of these."""
    made = cells({"mezo": "base", "bszo": "family"}, rates=(1e-4,), eps=(1e-3,))
    losses = {"mezo": 0.5, "bszo": 0.4}
    frames = made_frames(made, loss=lambda cell: losses.get(cell["line"], 0.7) + cell["seed"] / 1e4)
    setting = '{"lr": 0.0001, "optimizer.eps": 0.001}'
    rows = pd.DataFrame({"line": ["mezo", "bszo"], "edge": [edge, "lr"], "tie": "", "tried": 9})
    rows["setting"] = setting.replace("0.001", ran)
    rows.to_csv(tmp_path / "tuned.csv", index=False)
    monkeypatch.setattr(report, "SETTINGS", tmp_path)
    frame, *_ = report.comparison("tuned", fill(made, frames.runs), frames)
    verdict = frame.set_index("line").loc["bszo", "verdict"]
    assert verdict == ("not decided: MeZO's rate is at the edge of its grid", "better")[decided]


def test_a_comparison_has_the_majority_and_macro_f1():
    """Predicting the largest class of 1, 1, 1, 0 is right in 75 %; of F1 the classes have 6/7 and 0."""
    made = cells({"mezo": "base", "bszo": "family"}, rates=(1e-4,), eps=(1e-3,))
    frames = made_frames(made, loss=lambda cell: 0.5)
    known = {"test/labels": "1110", "best/test_macro_f1": 0.625}
    frame, table, _ = report.comparison("tuned", fill(made, frames.runs.assign(**known)), frames)
    rows = frame.set_index("line")[["test", "macro_f1"]]
    assert rows.loc["majority"].tolist() == pytest.approx([75, 300 / 7])
    assert rows.loc["bszo", "macro_f1"] == 62.5
    last = markdown(table).split("| majority |")[1].splitlines()[0]
    assert last.endswith("| 75.0 | 42.9 |")


@pytest.mark.parametrize("lines", [("mezo", "es"), ("mezo, signs", "es, n=8")])
def test_one_seed_a_line_has_curves_and_no_intervals(lines):
    made = cells(dict(zip(lines, ("base", "family"), strict=True)), (1e-4,), (6,), (1e-3,))
    frames = made_frames(made, loss=lambda cell: 0.5)
    frame, _, (figure, *_) = report.comparison("tuned", fill(made, frames.runs), frames)
    assert frame["low"].isna().all()
    assert set(figure.frame["series"]) == set(lines)


def test_a_setting_is_chosen_by_the_whole_curve_where_levels_are_fixed_and_ties_are_named():
    settings = [json.dumps({"lr": 1e-4, "optimizer.eps": eps}) for eps in (1e-4, 1e-3, 1e-2)]
    losses = {AREA: [0.6, 0.7, 0.7], AT_END: [0.6, 0.5, 0.50001]}
    runs = pd.DataFrame({"line": "mezo", "setting": settings, "seed": 1, **losses})
    made = cells({"mezo": "base"})
    for levels, setting, tie in ((None, 1, "eps"), ("[0.6]", 0, "")):
        by, _ = criterion_of(made.assign(levels=levels))
        (chosen,) = choices(runs, by=by).to_dict("records")
        assert (chosen["setting"], chosen["tie"]) == (settings[setting], tie)


def test_passes_to_a_loss_are_counted_paired_and_censored():
    """A run's loss falls from 1 in a straight line, over 40 steps of 2 passes, BSZO 3, evaluated at each tenth."""
    made = cells({"mezo": "base", "bszo": "family", "late": "family"}, (1e-4,), eps=(1e-3,))
    made["levels"] = "[0.8, 0.1]"
    ends = {"mezo": 0.5, "bszo": 0.0, "late": 0.9}
    filled, frames = ended(made, lambda cell: ends.get(cell["line"], 0.7))
    frame, table, (_, passes) = report.comparison("tuned", filled, frames)
    rows = frame[frame["line"] != "majority"].set_index("line")
    assert rows["passes_0"].drop("zero_shot").to_dict() == {"mezo": 40, "bszo": 30, "late": 80}
    assert rows.loc[["bszo", "late"], "ratio_0"].tolist() == pytest.approx([0.75, 2])
    assert rows["reached_0"].dropna().to_dict() == {"mezo": 3, "bszo": 3, "late": 0}
    assert (rows["passes_1"].dropna() == 80).all(), "one evaluation, the last, is no arrival"
    text = markdown(table)
    assert "| ≤ 30 (× 0.75, 0.00 to 1.50 by the evaluations) |" in text
    assert "0 of 3 seeds arrive; the others count with the whole budget\n" in text
    assert "with the whole budget; reached at the end, not confirmed: 3\n" in text
    assert "Not recorded: 12.5 %." in text
    shapes = passes.frame.groupby("method")["shape"].first().to_dict()
    assert shapes == {"mezo": "line", "bszo": "line", "late": "line", "zero_shot": "level"}
    assert sorted(passes.frame.query("method == 'bszo'")["x"]) == [30, 60, 90, 120]
    ends = passes.frame.groupby("method")["end"].first().to_dict()
    tested = {line: f"{round(test)} %" for line, test in rows["test"].items()}
    assert {end.split(", ")[1] for end in ends.values()} == {f"test {of}" for of in tested.values()}
    band = passes.frame.query("shape == 'line'")
    assert (band["low"] < band["y"]).all()
    assert (band["y"] < band["high"]).all()


def test_a_line_without_a_p_value_is_a_test_of_its_family():
    """Of four lines two have equal differences, or ratios, for all seeds: the others are corrected for four."""
    gaps = {"even": [0.1, 0.1], "same": [0.2, 0.2], "bszo": [0.1, 0.1001], "es": [0.1, 0.105]}
    rows = [{"line": line, "gap": gap} for line, both in gaps.items() for gap in both]
    found = decide(pd.DataFrame(rows).assign(claim="", role="family"), 0.01).set_index("line")
    assert (found["p_holm"] / found["p_value"]).dropna().round(6).to_dict() == {"bszo": 4, "es": 3}


def test_a_line_whose_runs_all_failed_is_a_test_of_its_family_and_pairs_are_counted():
    """Of two lines one has no run; of MeZO the second seed failed, so that BSZO's third and first are compared."""
    made = cells({"mezo": "base", "bszo": "family", "lozo": "family"}, rates=(1e-4,), eps=(1e-3,))
    made["levels"] = "[0.45]"
    lost = (made["line"] == "lozo") | ((made["line"] == "mezo") & (made["seed"] == 2))
    losses = {"mezo": 0.5, "bszo": 0.4}
    frames = made_frames(
        made,
        lambda cell: "unfinished" if cell["run_id"] in {*made.loc[lost, "run_id"]} else "finished",
        loss=lambda cell: losses.get(cell["line"], 0.7) + cell["seed"] ** 2 / 1e3,
    )
    frames.runs["failed"] = frames.runs["run_id"].isin(made.loc[lost, "run_id"])
    filled = fill(made, frames.runs)
    found = lines_frame(run_losses(filled, frames), filled).set_index("line")
    assert found["seeds"].to_dict() == {"mezo": 2, "bszo": 3, "lozo": 0, "zero_shot": 1}
    assert found["pairs"].to_dict() == {"mezo": 0, "bszo": 2, "lozo": 0, "zero_shot": 1}
    row = found.loc["bszo"]
    assert row["p_holm"] == pytest.approx(2 * row["p_value"])
    base = found.loc["mezo", AT_END]
    assert found.loc["zero_shot", "gap"] == pytest.approx(found.loc["zero_shot", AT_END] - base)
    _, table, figures = report.comparison("tuned", filled, frames)
    text = markdown(table)
    assert "the difference and its interval are of 2 seeds that MeZO has, too" in text
    assert "| LOZO |  | 0 | 0 |" in text
    assert figures


def test_a_record_keeps_what_a_task_is_measured_by(tmp_path):
    made = cells({"mezo": "base"}, rates=(1e-4,), eps=(1e-3,))
    frames = made_frames(made)
    named = {f"best/{split}_accuracy": f"best/{split}_f1" for split in ("val", "test")}
    frames = replace(
        frames, runs=frames.runs.rename(columns=named), lines=[*map(_line, made.to_dict("records"))]
    )
    write_record(frames, ["tuned"], tmp_path)
    kept = committed.read(tmp_path / "runs.parquet")
    filled = fill(kept.cells_of(["tuned"]), kept.runs)
    assert filled["measure"].unique().tolist() == ["f1"]
    assert filled["test_accuracy"].notna().all()
    _, table, _ = report.comparison("tuned", filled, kept)
    assert "Minus the validation F1 at shares" in markdown(table)


def test_settings_of_a_line_are_not_pooled():
    made = cells({"mezo": "base", "bszo": "family"}, rates=(1e-4,), eps=(1e-3, 1e-2))
    filled, frames = ended(made, lambda cell: 0.5)
    with pytest.raises(LogError, match="bszo has runs of several settings"):
        lines_frame(run_losses(filled, frames), filled)


def test_a_figures_intervals_are_those_of_the_verdicts():
    found = decide(studies(0.01), smallest=0.005)
    decided = found["verdict"].isin(["better", "worse"])
    assert 0 < decided.mean() < 1
    assert ((found["gap"].abs() > found["holm_half"]) == decided).all()


def test_a_backward_pass_counts_as_two_and_a_budget_that_no_step_fits_is_not_made_whole():
    made = cells({"mezo": "base", "adam": "other"}, (1e-4,), eps=(1e-3,)).assign(levels="[0.8]")
    made.loc[made["line"] == "adam", "steps"] = 26  # 78 of 80 passes
    frames = made_frames(made, loss=lambda cell: 0.5)
    rates = frames.runs["optimizer.name"].map({"adam": 1.0, "mezo": 2.0})
    filled = fill(made, frames.runs.assign(**{"run/forwards_per_step": rates}))
    runs = run_losses(filled, frames).query("steps > 0").groupby("line").first()
    assert runs["passes_per_step"].to_dict() == {"mezo": 2, "adam": 3}
    assert (runs["pass_ms"] * runs["passes_per_step"]).tolist() == runs["step_ms"].tolist()
    assert (runs["passes_0"] % runs["passes_per_step"] == 0).all()


def test_settings_are_written_for_complete_tuning_alone():
    filled, frames = ended(
        cells({"mezo": "base"}),
        best_at(1e-4, 1e-3),
        lambda cell: "missing" if cell["lr"] == 1e-3 else "finished",
    )
    with pytest.raises(LogError, match="next: 9 of 28"):
        settings_file("next", filled, frames, "", best=2)


def test_estimates_and_corrections_are_those_of_scipy_and_statsmodels():
    values = np.random.default_rng(1).normal(0.3, 1, (4, 7))
    rows, names = pd.Series(values.ravel()), pd.Series(np.repeat(range(4), 7))
    found = paired_estimates(rows, [names])
    for i, row in found.iterrows():
        assert row["estimate"] == pytest.approx(values[i].mean())
        interval = stats.ttest_1samp(values[i], 0).confidence_interval()
        assert (row["low"], row["high"]) == pytest.approx(tuple(interval))
        assert row["p_value"] == pytest.approx(stats.ttest_1samp(values[i], 0).pvalue)
    alone = paired_estimates(pd.Series([1.0, 2.0, 2.0]), [pd.Series(["a", "b", "b"])])
    assert alone[["low", "high", "p_value"]].isna().all(axis=None), "no spread is no certainty"
    p = [0.01, 0.04, 0.03, 0.2, 0.03]
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1])
    assert holm([0.04, np.nan])[:1] == [0.04]
    for right, n in ((0, 7), (31, 48), (48, 48)):
        theirs = proportion_confint(right, n, alpha=0.05, method="wilson")
        assert wilson_interval(right, n) == pytest.approx(theirs, abs=1e-12)
        assert sign_test(right, n) == pytest.approx(stats.binomtest(right, right + n).pvalue)


@pytest.mark.parametrize(("n", "tests"), [(20, 17), (14, 17), (5, 1)])
def test_the_minimum_detectable_effect_has_a_power_of_80_per_cent(n, tests):
    power = TTestPower().power(minimum_detectable_effect(n, tests), nobs=n, alpha=0.05 / tests)
    assert power == pytest.approx(0.8, abs=2e-3)


def studies(effect):
    """The reporting gaps of many made-up studies, in each of which line 0 loses more than the base by `effect`."""
    noise, sd = np.random.default_rng(2), 0.01
    base = np.repeat(noise.normal(0.5, sd, (STUDIES, SEEDS)), LINES, axis=0)
    own = noise.normal(0.5, sd, base.shape)
    own[::LINES] += effect
    lines = [f"{study}-{line}" for study in range(STUDIES) for line in range(LINES)]
    gaps = (
        pd.DataFrame(own - base, pd.Index(lines, name="line")).stack().rename("gap").reset_index()
    )
    return gaps.assign(claim=gaps["line"].str.partition("-")[0], role="family")


def test_of_1000_studies_the_stated_share_finds_what_is_not_there_and_most_what_is():
    found = decide(studies(0.0), smallest=0.005)
    wrong = found["verdict"].isin(["better", "worse"]).groupby(found["claim"]).any().mean()
    assert wrong <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / STUDIES)
    planted = minimum_detectable_effect(SEEDS, LINES) * 0.01 * np.sqrt(2)
    found = decide(studies(planted), smallest=0.005)
    first = found[found["line"].str.endswith("-0")]
    assert (first["verdict"] == "worse").mean() >= 0.78, "the power that is stated, or Holm's more"
    assert first["minimum_detectable_effect"].mean() == pytest.approx(planted, rel=0.05)
    assert first["gap"].mean() == pytest.approx(planted, rel=0.02)
