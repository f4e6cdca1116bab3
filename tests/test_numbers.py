"""Measurements on README.md and three pages of docs/, against the files that the numbers are from.

Sentences in numbers.yaml have expressions in place of their numbers, which see what `names` returns. A sentence that is
not on its page with these values fails; so does a number on a page that no sentence has.
"""

import json
import re
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

import pandas as pd
import pytest
import yaml

from analysis.stats.inference import holm, paired_estimates
from analysis.stats.passes import area

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "results" / "measured"
PAGES = yaml.safe_load(Path(__file__).with_name("numbers.yaml").read_text(encoding="utf-8"))


def table(name: str, *index: str) -> pd.DataFrame:
    """A file's rows by these columns, of which each row has other values."""
    path = MEASURED / name
    rows = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    rows = rows.set_index([*index]) if index else rows
    assert rows.index.is_unique
    return rows


def faster(name: str, how: str) -> pd.Series:
    """The released step's time over ours at its fastest policy, by method."""
    rows = table(f"benchmarks/{name}").query(f"plain_ms.notna() and {how}")
    times = (rows["plain_ms"] / rows["step_ms"]).groupby([rows["method"], rows["examples"]]).max()
    return times.droplevel("examples")


def lora_faster() -> float:
    text = (MEASURED / "adapters/smollm2-135m.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    of = {row[1]: float(row[9]) for row in rows if len(row) > 9 and row[1].startswith("MeZO")}
    return of["MeZO, all"] / of["MeZO, LoRA"]


def compared(sweep: str) -> pd.DataFrame:
    """A comparison by line; `ci` is half of the 95 % interval of the gap."""
    rows = table(f"{sweep}/comparison.csv", "line")
    eps = [json.loads(setting).get("optimizer.eps") for setting in rows["setting"]]
    return rows.assign(ci=(rows["high"] - rows["low"]) / 2, eps=eps, reward=-rows["loss_100"])


def family(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["role"] == "family"]


def effects(rows: pd.DataFrame) -> "pd.Series[float]":
    return family(rows)["minimum_detectable_effect"]


def decided(rows: pd.DataFrame) -> dict[str, str]:
    verdicts = family(rows)["verdict"]
    return verdicts[verdicts.isin(("better", "worse"))].to_dict()


def at_share(sweep: str, share: float = 0.5, without: int = 0) -> pd.DataFrame:
    """Differences from MeZO at a share of the budget by line, with `ci` and Holm's p of the family.

    A line's runs are in the order of their seeds, and a line of fewer has the first. The first
    `without` seeds are left out.
    """
    curves = table(f"{sweep}/evaluations.parquet").groupby("run_id")
    rows = compared(sweep).query("seeds > 1")

    def loss(run: str) -> float:
        curve = curves.get_group(run)
        there = (curve["step"] - curve["step"].max() * share).abs().argmin()
        return curve["eval/val_loss"].iloc[there]

    losses = [[loss(run) for run in runs.split()] for runs in rows["run_ids"]]
    by_seed = pd.concat(map(pd.Series, losses), axis=1, keys=rows.index).T
    assert by_seed.notna().sum(axis=1).equals(rows["seeds"])
    by_seed = by_seed.iloc[:, without:]
    gaps = (by_seed - by_seed.loc["mezo"]).stack().dropna()
    found = paired_estimates(gaps, [gaps.index.get_level_values("line")])
    found["ci"] = found["high"] - found["estimate"]
    of = family(rows).index.intersection(found.index)
    found["p_holm"] = pd.Series(holm(found["p_value"][of].tolist()), of)
    return found


def signed(estimate: float, half: float, p_holm: float, digits: int = 3) -> str:
    """A difference and half of its interval; bold if it is significant."""
    text = f"{estimate:+.{digits}f} ± {half:.{digits}f}".replace("-", "−")
    return f"**{text}**" if p_holm < 0.05 else text


def gap(line: str, share: float, without: int = 0) -> str:
    """A line's loss minus MeZO's in the long comparison."""
    row = at_share("compare_smollm2_long", share, without).loc[line]
    return signed(row["estimate"], row["ci"], row["p_holm"])


def ratio(line: str, level: int) -> str:
    """A line's passes to a level over MeZO's, with the interval."""
    row = compared("compare_smollm2_long").loc[line]
    of, low, high = (row[f"{key}_{level}"] for key in ("ratio", "low", "high"))
    known = pd.notna(low)  # else all seeds have the same ratio, and the evaluations bound it
    low, high = (low, high) if known else (row[f"least_{level}"], row[f"most_{level}"])
    text = f"{of:.2f} ({low + 1e-9:.2f}–{high:.2f})"
    return f"**{text}**" if row[f"p_holm_{level}"] < 0.05 else text


@cache
def further() -> pd.DataFrame:
    """Right answers to 2,000 further texts, %, by line: means over ten seeds, and those minus MeZO's."""
    rows = table("compare_smollm2_long/further.csv", "optimizer", "seed")
    assert set(rows["texts"]) == {2000}
    assert set(rows.groupby("optimizer").size()) == {10}
    right = 100 * rows["accuracy"].unstack()
    means, gaps = (
        paired_estimates(of.stack(), [of.stack().index.get_level_values(0)])
        for of in (right, (right - right.loc["mezo"]).drop("mezo"))
    )
    gaps["p_holm"] = holm(gaps["p_value"].tolist())
    both = means.join(gaps.add_suffix("_gap"))
    return both.assign(
        half=both["high"] - both["estimate"], half_gap=both["high_gap"] - both["estimate_gap"]
    )


def more_right(line: str) -> str:
    """A line's points above MeZO's of the further texts."""
    row = further().loc[line]
    return signed(row["estimate_gap"], row["half_gap"], row["p_holm_gap"], 1)


def curves(sweep: str, line: str) -> pd.DataFrame:
    """Validation losses by forward passes of a line, a column per seed."""
    row = compared(sweep).loc[line]
    rows = table(f"{sweep}/evaluations.parquet").pivot(
        index="step", columns="run_id", values="eval/val_loss"
    )
    found = rows[row["run_ids"].split()].dropna()
    return found.set_axis(found.index * row["passes"])


def areas(sweep: str, lr: float) -> float:
    """The mean loss over log passes of Adam's tuning run at a rate, by which settings are chosen."""
    runs = table(f"{sweep}/runs.parquet", "run_id")
    (run,) = runs.query("`optimizer.name` == 'adam' and seed == 101 and lr == @lr").index
    rows = table(f"{sweep}/evaluations.parquet").query("step > 0")
    rows = rows[rows["run_id"] == run]
    return area(pd.DataFrame({"forwards": 3 * rows["step"], "loss": rows["eval/val_loss"]}))


def ends(sweep: str, line: str) -> "pd.Series[float]":
    return curves(sweep, line).iloc[-1]


def lowest(sweep: str, line: str) -> int:
    """The forward passes of the lowest mean loss."""
    return int(curves(sweep, line).mean(axis=1).idxmin())


def percent(line: str) -> str:
    """Right answers of a line of the long comparison: to the further texts, else to the test texts."""
    right, test = further(), compared("compare_smollm2_long").loc[line]
    mean, half = (
        right.loc[line, ["estimate", "half"]]
        if line in right.index
        else test[["test", "test_half"]]
    )
    return f"{mean:.1f} ± {half:.1f}"


def at_most(line: str) -> str:
    return "≤ " * bool(compared("compare_smollm2_long").at_once_0[line])


def significant(rows: pd.DataFrame) -> pd.Series:
    return rows[rows["p_holm"] < 0.05]["estimate"]


def long_tuned(lr: float) -> pd.DataFrame:
    """`forwards` and `loss` of MeZO's tuning run of the long comparison at a rate."""
    runs = table("compare_smollm2_long/runs.parquet", "run_id")
    (run,) = runs.query("`optimizer.name` == 'mezo' and seed == 101 and lr == @lr").index
    rows = table("compare_smollm2_long/evaluations.parquet")
    rows = rows[(rows["run_id"] == run) & (rows["step"] > 0)]
    return pd.DataFrame({"forwards": 2 * rows["step"], "loss": rows["eval/val_loss"]})


def diverges(lr: float, after: int) -> bool:
    """Whether the loss is above the untrained model's at all evaluations that follow, and below it before."""
    curve = long_tuned(lr)
    later = curve["forwards"] > after
    return bool(
        ((curve["loss"] > compared("compare_smollm2_long").loss_100["zero_shot"]) == later).all()
    )


def grpo() -> pd.DataFrame:
    """Means over the reporting seeds at the rate that they have, by quantity and texts."""
    rows = table("reward/grpo.csv").query("seed < 100 and lr == 3e-4")
    assert rows.groupby("texts")["seed"].agg(sorted).tolist() == 2 * [[1, 2, 3, 4, 5]]
    values = {"reward": rows["val_reward_after"], "exact": 100 * rows["test_exact_after"]}
    found = pd.concat({of: paired_estimates(x, [rows["texts"]]) for of, x in values.items()})
    return found.assign(ci=found["high"] - found["estimate"])


def word(count: int) -> str:
    return ("none", "one", "two", "three", "four", "five", "six", "seven")[count]


def holds(condition: bool) -> str:
    """Nothing; for what a sentence says without a number."""
    assert condition
    return ""


@cache
def names() -> dict[str, Any]:
    slopes = table("half_precision/slopes.csv", "model", "eps", "dtype", "sides")
    runs = table("table4/runs.parquet").set_index("model.name")
    audit = (ROOT / "results/paper/audit.md").read_text()
    return globals() | {
        "opt_13b": table("table4/table4.csv", "model", "quantity", "method")["measured"]["opt-13b"],
        "fast": table("table4_fast/steps.csv")
        .groupby(["method", "restore"])["ms"]
        .median()
        .groupby("method")
        .min(),
        "parameters": runs["provenance.parameters"]["opt-13b"].iloc[0],
        "rounding": slopes["error"] / slopes["slope"],
        "philox": faster("steps.csv", "noise == 'philox'"),
        "subtract": faster("steps.csv", "noise == 'torch' and restore == 'subtract'"),
        "audit": re.findall(r"\d+ checks with .* observations", audit)[0],
        "faults": table("robustness/faults.csv", "fault")["times"],
        "killed": table("robustness/runs.csv"),
        "fp32": compared("compare"),
        "bf16": compared("compare_bf16"),
        "passes": compared("compare_passes"),
        "lora": compared("compare_smollm2"),
        "long": compared("compare_smollm2_long"),
        "whole": compared("compare_smollm2_all"),
        "half": at_share("compare"),
        "lora_half": at_share("compare_smollm2"),
        "again": pd.DataFrame(
            [at_share("compare_smollm2_long", of, 3)["p_holm"] for of in (0.25, 0.5, 1.0)]
        ),
        "rewarded": compared("reward"),
        "grpo": grpo(),
    }


def sentences(page: str) -> list[str]:
    """Of a page, with a row of its table for each line."""
    found = []
    for given in PAGES[page]["sentences"]:
        rows = [("", "")] if isinstance(given, str) else given["of"].items()
        template = given if isinstance(given, str) else given["row"]
        found += [template.replace("NAME", name).replace("LINE", line) for name, line in rows]
    return found


NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.\d+|\d+ (?:%|GB|ms|nats|points|times|runs)(?!\w)")


class Filled(Formatter):
    """Fills the places of a sentence with the values of their expressions."""

    def get_field(self, expression: str, *_: Any) -> tuple[Any, str]:
        return eval(expression, names()), expression


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize(
    ("page", "sentence"),
    [(page, sentence) for page in PAGES for sentence in sentences(page)],
    ids=lambda of: of[:60],
)
def test_a_number_on_a_page_is_that_of_its_file(page, sentence):
    assert Filled().format(sentence) in text_of(page)


@pytest.mark.parametrize("page", [page for page, of in PAGES.items() if "settings" in of])
def test_every_number_of_a_page_is_in_a_sentence_that_is_checked(page):
    text = text_of(page)
    for known in [*map(Filled().format, sentences(page)), *PAGES[page]["settings"]]:
        text = text.replace(known, "…")
    assert NUMBER.findall(text) == []
