"""Measurements on README.md and three pages of docs/, against the files that the numbers are from.

Sentences have expressions in place of their numbers, which see what `names` returns. A sentence that is not on its page
with these values fails; so does a number on a page that no sentence has.
"""

import json
import re
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

import pandas as pd
import pytest

from analysis.stats.inference import holm, paired_estimates

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "results" / "measured"
README, RESULTS = "README.md", "docs/results.md"
COMPARISON, REWARDS = "docs/comparison.md", "docs/rewards.md"


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


def at_half(sweep: str) -> pd.DataFrame:
    """Differences from MeZO at half of the budget by line, with `ci` and Holm's p of the family.

    A line's runs are in the order of their seeds.
    """
    curves = table(f"{sweep}/evaluations.parquet").groupby("run_id")
    rows = compared(sweep).query("seeds > 1")

    def loss(run: str) -> float:
        curve = curves.get_group(run)
        middle = (curve["step"] - curve["step"].max() / 2).abs().argmin()
        return curve["eval/val_loss"].iloc[middle]

    losses = [[loss(run) for run in runs.split()] for runs in rows["run_ids"]]
    by_seed = pd.DataFrame(losses, rows.index)
    assert by_seed.notna().all(axis=None)
    gaps = (by_seed - by_seed.loc["mezo"]).stack()
    found = paired_estimates(gaps, [gaps.index.get_level_values("line")])
    found["ci"] = found["high"] - found["estimate"]
    found["p_holm"] = pd.Series(holm(found["p_value"][of := family(rows).index].tolist()), of)
    return found


def significant(rows: pd.DataFrame) -> pd.Series:
    return rows[rows["p_holm"] < 0.05]["estimate"]


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
    cases = [faster(f"{at}steps.csv", "noise == 'philox'") for at in ("", "again/")]
    tried = table("study_smollm2_cpu/grid.csv").query("chosen")
    audit = (ROOT / "results/paper/audit.md").read_text()
    return globals() | {
        "opt_13b": table("table4/table4.csv", "model", "quantity", "method")["measured"]["opt-13b"],
        "parameters": runs["provenance.parameters"]["opt-13b"].iloc[0],
        "rounding": slopes["error"] / slopes["slope"],
        "philox": pd.concat(cases),
        "subtract": faster("steps.csv", "noise == 'torch' and restore == 'subtract'"),
        "claims": table("study_tiny/claims.csv").query("verdict == 'holds'"),
        "smollm2": tried.set_index("method")["test_mean"],
        "audit": re.findall(r"\d+ checks with .* observations", audit)[0],
        "faults": table("robustness/faults.csv", "fault")["times"],
        "killed": table("robustness/runs.csv"),
        "fp32": compared("compare"),
        "bf16": compared("compare_bf16"),
        "passes": compared("compare_passes"),
        "lora": compared("compare_smollm2"),
        "half": at_half("compare"),
        "lora_half": at_half("compare_smollm2"),
        "rewarded": compared("reward"),
        "grpo": grpo(),
    }


def rows_of(template: str, *names: str, **others: str) -> list[str]:
    """A row of a page's table for each line: its NAME there, and what it is called in the files, its LINE.

    That is the part of the name before a bar, if there is one, or what others say.
    """
    lines = {of.replace("|", ""): of.split("|")[0].lower().replace("-", "_") for of in names}
    return [template.replace("NAME", n).replace("LINE", of) for n, of in (lines | others).items()]


SENTENCES = {
    README: [
        *rows_of(
            "| NAME | {opt_13b['memory_gb', 'LINE']:.1f} | {opt_13b['step_ms', 'LINE']:,.0f} |",
            *("MeZO", "BSZO|, k = 2", "LOZO|, our implementation", "HiZOO", "MeZO-Adam"),
        ),
        "a 13B language model in {opt_13b['memory_gb', 'mezo']:.0f} GB",
        "moments of Adam would take {parameters * 4 * 2 / 1e9:.1f} GB.",  # 4 numbers in bf16
        "rounding is {rounding['smollm2-135m', 1e-4, 'bfloat16', 1]:.1f} "
        "to {rounding['reviews-tiny', 1e-4, 'bfloat16', 1]:.1f} times the slope",
        "**none of {len(family(fp32))} variants ends better than MeZO**"
        "{holds('better' not in [*decided(fp32).values(), *decided(bf16).values()])}",
        "LoRA on SmolLM2-135M {word(len(significant(lora_half)))} of {len(family(lora))} are better at half of "
        "the budget, none at its end. There Adam's loss is {-lora.gap['adam']:.3f} lower."
        "{holds(max(significant(lora_half)) < 0 and not decided(lora))}",
        "MeZO needs {passes.passes_2['mezo']:.0f} forward passes to reach a loss of 0.56",
        "BSZO needs {passes.ratio_2['bszo']:.2f} times as many (95 % CI {passes.low_2['bszo']:.2f} "
        "to {passes.high_2['bszo']:.2f}), MeZO-Adam {passes.ratio_2['mezo_adam']:.2f}, "
        "LOZO {passes.ratio_2['lozo']:.2f}, TeZO {passes.ratio_2['tezo']:.2f}.",
    ],
    RESULTS: [
        "on a CPU {int(philox.min())} to {int(philox.max())} times less than our implementation of the released step",
        "`torch` {subtract.drop('lozo').min():.1f} to {subtract.drop('lozo').max():.1f} times less "
        "(LOZO {subtract['lozo']:.1f})",
        "{audit} on statements of the text",
        "better than zero-shot, by {claims.estimate.min():.1f} to {claims.estimate.max():.1f} points, in every"
        "{holds(claims.what.tolist() == 3 * ['BSZO against zero-shot'])}",
        "zero-shot {smollm2['zero_shot']:.1f} %, MeZO {smollm2['mezo']:.1f} %, BSZO {smollm2['bszo']:.1f} %",
        "LoRA's step is {lora_faster():.0f} times as fast",
        "{faults.filter(like='SIGKILL').sum()} SIGKILLs, {faults.filter(regex='SIG[TU]').sum()} signals to stop, "
        "{faults.filter(regex='disk|read-only').sum()} full or read-only disks, "
        "{faults.sum() - faults.filter(regex='SIG|disk|read-only').sum()} damaged files over {len(killed)} short runs",
    ],
    REWARDS: [
        *rows_of(
            "| NAME | {rewarded.reward['LINE']:.3f} ± {rewarded.loss_100_half['LINE']:.3f} "
            "| {rewarded.test['LINE']:.1f} ± {rewarded.test_half['LINE']:.1f} | {rewarded.drift['LINE']:.1f} "
            "| {rewarded.also['LINE']:.3f} ± {rewarded.also_half['LINE']:.3f} |",
            *("MeZO", "FZOO", "EGGROLL|, n=32", "ES|, n=32", "BSZO"),
            **{
                "ES, n=32, with `optimizer.anchor=start`": "es, anchor at 0.03",
                "ES, n=32, with `optimizer.anchor=start`, a third of the rate": "es, anchor",
            },
        ),
        "| GRPO, 4,096 texts | {grpo.estimate['reward', 4096]:.3f} ± {grpo.ci['reward', 4096]:.3f} "
        "| {grpo.estimate['exact', 4096]:.1f} ± {grpo.ci['exact', 4096]:.1f} | | |",
        "| before a step | {rewarded.reward['zero_shot']:.3f} | {rewarded.test['zero_shot']:.1f} | 0 "
        "| {rewarded.also['zero_shot']:.3f} |",
        "ES falls from {rewarded.also['zero_shot']:.3f} to {rewarded.also['es']:.3f}.",
        "the anchor leaves {rewarded.also['es, anchor at 0.03']:.3f}, and the reward does not differ significantly"
        "{holds(abs(rewarded.own['es, anchor at 0.03']) < rewarded.own_half['es, anchor at 0.03'])}",
        "raise the reward, by {min(rewarded.reward.drop('zero_shot')) - rewarded.reward['zero_shot']:.3f} "
        "to {max(rewarded.reward) - rewarded.reward['zero_shot']:.3f}.",
        "EGGROLL with 8, 32 and 128 members ends at {rewarded.reward['eggroll, n=8']:.3f}, "
        "{rewarded.reward['eggroll']:.3f} and {rewarded.reward['eggroll, n=128']:.3f}",
        "the reward by {grpo.estimate['reward', 4096] - rewarded.reward['zero_shot']:.3f}, "
        "and by {grpo.estimate['reward', 2048] - rewarded.reward['zero_shot']:.3f} with half of the texts",
        "**BSZO is worse than MeZO** (p {rewarded.p_holm['bszo']:.3f} after Holm's correction)"
        "{holds(decided(rewarded) == dict(bszo='worse'))}",
    ],
    COMPARISON: [
        "on Rotten Tomatoes, {fp32.seeds['mezo']} seeds.",
        "In float32 MeZO ends at {fp32.loss_100['mezo']:.4f} ± {fp32.loss_100_half['mezo']:.4f} nats, "
        "the untrained model at {fp32.loss_100['zero_shot']:.4f}.",
        "MeZO is at {fp32.loss_50['mezo']:.4f} nats at half of the budget and at its end, "
        "and 16 of {len(family(fp32))} lines end within {sorted(abs(family(fp32).gap))[15]:.4f} of it"
        "{holds(round(fp32.loss_50['mezo'], 4) == round(fp32.loss_100['mezo'], 4))}",
        "At half of the budget {word(len(significant(half)))} of {len(family(fp32))} are worse."
        "{holds(min(significant(half)) > 0)}",
        *rows_of(
            "| NAME | {half.estimate['LINE']:.4f} ± {half.ci['LINE']:.4f} |",
            *("BSZO-B", "BSZO", "ZO-Muon", "ZO-Sign", "FZOO", "ZO-Conservative"),
        ),
        "**ZO-Muon** also ends higher, by {fp32.gap['zo_muon']:.4f} ± {fp32.ci['zo_muon']:.4f}.",
        "MeZO-Adam ends {bf16.gap['mezo_adam']:.4f} ± {bf16.ci['mezo_adam']:.4f} above MeZO",
        "bfloat16 costs MeZO {bf16.loss_100['mezo'] - fp32.loss_100['mezo']:.4f} nats, "
        "BSZO {bf16.loss_100['bszo'] - fp32.loss_100['bszo']:.4f} "
        "and MeZO-Adam {bf16.loss_100['mezo_adam'] - fp32.loss_100['mezo_adam']:.4f}",
        "by {-fp32.gap['adam']:.4f} ± {fp32.ci['adam']:.4f} in float32 "
        "and {-bf16.gap['adam']:.4f} ± {bf16.ci['adam']:.4f} in bfloat16",
        "fixed noise is {half.estimate['bszo'] - half.estimate['bszo, fixed noise']:.4f} "
        "and m = 2 is {half.estimate['bszo'] - half.estimate['bszo, m=2']:.4f} below BSZO's line, "
        "and k = 8 is {half.estimate['bszo, k=8'] - half.estimate['bszo']:.4f} above it",
        "noise lie within {fp32.own.filter(like='bszo, ').drop('bszo, signs').abs().max():.4f} of it.",
        "If it masks all tensors, it ends {fp32.own['sparse_mezo, all']:.4f} ± "
        "{fp32.own_half['sparse_mezo, all']:.4f} higher",
        "effect is {effects(fp32).min():.4f} to {effects(fp32).max():.4f} nats in float32 "
        "and {effects(bf16).min():.4f} to {effects(bf16).max():.4f} in bfloat16",
        "On the small model, {passes.seeds['mezo']} seeds, with rates",
        "as a ratio to MeZO's {passes.passes_2['mezo']:.0f} (95 % CI)",
        *rows_of(
            "**{passes.ratio_2['LINE']:.2f}** ({passes.low_2['LINE']:.2f}–{passes.high_2['LINE']:.2f})"
            "{holds(passes.p_holm_2['LINE'] < 0.05)}",
            *("TeZO", "LOZO", "MeZO-Adam", "BSZO-B", "ZO-Muon"),
        ),
        *rows_of(
            "{passes.ratio_2['LINE']:.2f} ({passes.low_2['LINE']:.2f}–{passes.high_2['LINE']:.2f})"
            "{holds(passes.p_holm_2['LINE'] > 0.05)}",
            *("BSZO", "FZOO"),
        ),
        "end higher: TeZO by {passes.gap['tezo']:.3f}, MeZO-Adam by {passes.gap['mezo_adam']:.3f}, "
        "LOZO by {passes.gap['lozo']:.3f} nats"
        "{holds(all(decided(passes)[line] == 'worse' for line in ('tezo', 'mezo_adam', 'lozo')))}",
        "BSZO by {-lora_half.estimate['bszo']:.2f} and MeZO-Adam by {-lora_half.estimate['mezo_adam']:.2f} nats",
        "The untrained model has {lora.loss_100['zero_shot']:.4f} nats",
        "| MeZO | – | {lora.loss_100['mezo']:.4f} | {lora.test['mezo']:.1f} |",
        *rows_of(
            "| NAME | −{-lora_half.estimate['LINE']:.3f} ± {lora_half.ci['LINE']:.3f} "
            "| {lora.loss_100['LINE']:.4f} | {lora.test['LINE']:.1f} |",
            *("MeZO-Adam", "BSZO", "HiZOO", "TeZO", "ConMeZO", "Adam"),
        ),
        "between {-lora.gap['tezo']:.4f} below it (TeZO) and {lora.gap['hizoo']:.4f} above (HiZOO, "
        "{holds([family(lora).gap.idxmin(), family(lora).gap.idxmax()] == ['tezo', 'hizoo'])}",
        "The median minimum detectable effect is {effects(lora).median():.4f} nats",
    ],
}

SETTINGS = {
    README: [
        *(
            "Python 3.11",
            "about 3.5 GB on Linux, 0.3 GB",
            "opt-1.3b",
            "all 15 runs",
            "loss of 0.56",
        ),
        *("7 runs, tables", "Apache-2.0"),
    ],
    RESULTS: [],
    COMPARISON: [
        *("a power of 80 %", "95 % intervals", "(95 % CI half-width)", "p = 0.05"),
        *("0.62 nats is about the loss of a constant answer", "21 runs for every line"),
        *("reach 0.56 nats in about half", "at or below 0.56 nats"),
    ],
}
"""Of each page, what is a setting and no measurement."""

NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.\d+|\d+ (?:%|GB|ms|nats|points|times|runs)(?!\w)")


class Filled(Formatter):
    """Fills the places of a sentence with the values of their expressions."""

    def get_field(self, expression: str, *_: Any) -> tuple[Any, str]:
        return eval(expression, names()), expression


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize(
    ("page", "sentence"),
    [(page, sentence) for page, of in SENTENCES.items() for sentence in of],
    ids=lambda of: of[:60],
)
def test_a_number_on_a_page_is_that_of_its_file(page, sentence):
    assert Filled().format(sentence) in text_of(page)


@pytest.mark.parametrize("page", SETTINGS)
def test_every_number_of_a_page_is_in_a_sentence_that_is_checked(page):
    text = text_of(page)
    for known in [*map(Filled().format, SENTENCES[page]), *SETTINGS[page]]:
        text = text.replace(known, "…")
    assert NUMBER.findall(text) == []
