"""Measurements on README.md, docs/results.md and docs/comparison.md, against the files that the numbers are from.

A row of SENTENCES is a page, a sentence of it with places for numbers, and the numbers. A sentence that is not on its
page with these numbers fails; so does a number on a page that no sentence has.
"""

import json
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.stats.intervals import holm
from analysis.stats.paired import paired_estimates

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "results" / "measured"
README, RESULTS, COMPARISON = "README.md", "docs/results.md", "docs/comparison.md"
REWARDS = "docs/rewards.md"


@cache
def table(name: str) -> pd.DataFrame:
    path = MEASURED / name
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


def one(name: str, column: str, **of: Any) -> Any:
    """The value of the only row in which all columns are as given."""
    rows = table(name)
    for key, value in of.items():
        rows = rows[rows[key] == value]
    (found,) = rows[column]
    return found


# The paper's Table 4, on an H200, and slopes in half precision


def table4(method: str) -> tuple[float, float]:
    """Gigabytes and milliseconds of a step of OPT-13B."""
    of = {"method": method, "model": "opt-13b"}
    return tuple(one("table4/table4.csv", "measured", quantity=q, **of) for q in QUANTITIES)  # type: ignore[return-value]


QUANTITIES = ("memory_gb", "step_ms")


def adams_weights() -> tuple[float]:
    """Weights, gradient and two moments of OPT-13B in bf16: 4 × 2 bytes per parameter, in gigabytes."""
    runs = table("table4/runs.parquet")
    return (runs[runs["model.name"] == "opt-13b"]["provenance.parameters"].iloc[0] * 8 / 1e9,)


def slopes(model: str) -> list[float]:
    """Error over slope at each ε, one-sided, bf16, all rounded."""
    of = {"model": model, "dtype": "bfloat16", "sides": 1}
    name = "half_precision/slopes.csv"
    return [
        one(name, "error", eps=eps, **of) / one(name, "slope", eps=eps, **of)
        for eps in (1e-4, 1e-3, 1e-2)
    ]


# Steps on a CPU


def faster(name: str, restore: str | None, noise: str, *methods: str) -> list[float]:
    """The released step's time over ours of each case, at its fastest policy."""
    rows = table(name)
    rows = rows[rows["plain_ms"].notna() & (rows["noise"] == noise)]
    rows = rows[rows["restore"] == restore] if restore else rows
    rows = rows[rows["method"].isin(methods)] if methods else rows
    times = (rows["plain_ms"] / rows["step_ms"]).groupby([rows["examples"], rows["method"]]).max()
    return times.tolist()


def philox() -> tuple[int, int]:
    both = [faster(f"benchmarks/{at}steps.csv", None, "philox") for at in ("", "again/")]
    return int(min(map(min, both))), int(max(map(max, both)))


def released() -> tuple[float, float, float]:
    others = ("mezo", "mezo_adam", "hizoo", "bszo", "bszo_b")
    of, (lozo,) = (
        faster("benchmarks/steps.csv", "subtract", "torch", *names) for names in (others, ("lozo",))
    )
    return min(of), max(of), lozo


# Quickstart and studies


def quickstart(method: str) -> tuple[Any, ...]:
    def of(column: str) -> Any:
        return one("quickstart/table.csv", column, method=method)

    percent = [100 * of(f"{x}_accuracy") for x in ("val", "test")]
    ends = 100 * of("test_low"), 100 * of("test_high")
    if method == "zero_shot":
        return (*percent, *ends)
    p = f"{of('p_mcnemar'):.1e}".replace("e-0", "e−0")
    rest = of("gain_points"), p, of("step_ms"), of("forwards_per_step"), of("forwards_to_best")
    return (of("lr"), of("best_step"), *percent, *ends, *rest)


def small_study(method: str, *precisions: str) -> list[float]:
    """Means and deviations of a method, one after another."""
    name, found = "study_tiny/accuracy.csv", []
    for precision in precisions:
        of = {"method": method, "precision": precision}
        found += [one(name, "test_mean", **of), one(name, "test_std", **of)]
    return found


def over_zero_shot() -> tuple[float, float]:
    """The claims that hold, which are BSZO's against zero-shot in every precision."""
    claims = table("study_tiny/claims.csv")
    holds = claims[claims["verdict"] == "holds"]
    assert holds["what"].tolist() == 3 * ["BSZO against zero-shot"]
    return holds["estimate"].min(), holds["estimate"].max()


def smollm2(*methods: str) -> list[float]:
    return [one("study_smollm2_cpu/grid.csv", "test_mean", chosen=True, method=m) for m in methods]


def lora_faster() -> tuple[float]:
    text = (MEASURED / "adapters/smollm2-135m.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    of = {row[1]: float(row[9]) for row in rows if len(row) > 9 and row[1].startswith("MeZO")}
    return (of["MeZO, all"] / of["MeZO, LoRA"],)


def faults() -> list[int]:
    times = table("robustness/faults.csv").set_index("fault")["times"]
    kinds = ["^SIGKILL", "^SIGTERM|^SIGUSR2", "^disk|^read-only"]
    of = [times[times.index.str.contains(kind)].sum() for kind in kinds]
    return [*of, times.sum() - sum(of), len(table("robustness/runs.csv"))]


def audit() -> tuple[int, ...]:
    first = (ROOT / "results/paper/audit.md").read_text()
    found = re.search(r"(\d+) checks with (\d+) findings; (\d+) findings and (\d+) obs", first)
    return tuple(map(int, found.groups()))  # type: ignore[union-attr, return-value]


# The comparison


def compared(sweep: str, line: str, *columns: str) -> list[Any]:
    """Of a line of a comparison's table."""
    return [one(f"{sweep}/comparison.csv", column, line=line) for column in columns]


def last_loss(sweep: str, line: str) -> float:
    """The mean over a line's runs, in full precision; the table's is rounded already."""
    last = table(f"{sweep}/evaluations.parquet").groupby("run_id")["eval/val_loss"].last()
    return last[compared(sweep, line, "run_ids")[0].split()].mean()


def gap(sweep: str, line: str) -> list[float]:
    """A line's difference from MeZO, and half of its 95 % interval."""
    mean, low, high = compared(sweep, line, "gap", "low", "high")
    return [mean, (high - low) / 2]


def family(sweep: str) -> pd.DataFrame:
    rows = table(f"{sweep}/comparison.csv")
    return rows[rows["role"] == "family"]


def detectable(sweep: str) -> list[float]:
    found = family(sweep)["detectable"]
    return [found.min(), found.max(), found.median()]


def eps_of(sweep: str) -> pd.Series:
    rows = table(f"{sweep}/comparison.csv").query("role != 'other'")
    return rows.set_index("line")["setting"].map(json.loads).map(lambda of: of["optimizer.eps"])


@cache
def at_half(sweep: str) -> pd.DataFrame:
    """Differences from MeZO at half of the budget, with half of their 95 % interval and Holm's p of the family.

    A line's runs are in the order of their seeds.
    """
    curves = dict(iter(table(f"{sweep}/evaluations.parquet").groupby("run_id")))
    losses = {}
    for row in table(f"{sweep}/comparison.csv").to_dict("records"):
        runs = [curves[run] for run in row["run_ids"].split()]
        middles = [(of["step"] - of["step"].max() / 2).abs().argmin() for of in runs]
        losses[row["line"]] = [
            of["eval/val_loss"].iloc[i] for of, i in zip(runs, middles, strict=True)
        ]
    trained = {line: values for line, values in losses.items() if len(values) > 1}
    lines = [line for line in trained if line != "mezo"]
    gaps = pd.DataFrame(
        [
            (line, x - y)
            for line in lines
            for x, y in zip(trained[line], trained["mezo"], strict=True)
        ]
    )
    found = paired_estimates(gaps[1], [gaps[0]])
    members = family(sweep)["line"].tolist()
    found.loc[members, "holm"] = holm(found.loc[members, "p_value"].tolist())
    return found.assign(half=found["high"] - found["estimate"])


def differ_at_half(sweep: str) -> dict[str, float]:
    """The lines that differ significantly at half of the budget, and by how much."""
    rows = at_half(sweep)
    return rows.loc[rows["holm"] < 0.05, "estimate"].to_dict()


def six_are_worse() -> tuple[()]:
    worse = differ_at_half("compare")
    assert len(worse) == 6
    assert min(worse.values()) > 0
    return ()


def five_are_better() -> list[float]:
    better = differ_at_half(SMOLLM2)
    assert len(better) == 5
    assert max(better.values()) < 0
    return [-better["bszo"], -better["mezo_adam"]]


def floor() -> list[float]:
    """MeZO's loss at half and at the end, the same in print; the largest gap at the end of all but ZO-Muon."""
    half, end = compared("compare", "mezo", "loss_50", "loss_100")
    assert f"{half:.4f}" == f"{end:.4f}"
    gaps = family("compare").set_index("line")["gap"].drop("zo_muon")
    return [half, gaps.abs().max()]


def of_halves(sweep: str, line: str) -> list[float]:
    return at_half(sweep).loc[line, ["estimate", "half"]].tolist()


def settings_at_half() -> list[float]:
    """Of fixed noise, m = 2 and k = 8: how far from BSZO's line at half of the budget."""
    rows = at_half("compare")["estimate"]
    return [abs(rows[f"bszo, {x}"] - rows["bszo"]) for x in ("fixed noise", "m=2", "k=8")]


def pretrained_row(line: str) -> list[float]:
    half = [] if line == "mezo" else [abs(x) for x in of_halves(SMOLLM2, line)]
    return [*half, *compared(SMOLLM2, line, "loss_100", "test")]


def bf16_wants_a_larger_eps() -> tuple[()]:
    assert (eps_of("compare_bf16") >= 1e-3).all()
    return ()


def bf16_costs() -> list[float]:
    """By what the loss in bfloat16 is above that in float32."""
    lines, ends = ("mezo", "bszo", "mezo_adam"), []
    for line in lines:
        (bf16,), (fp32,) = (compared(of, line, "loss_100") for of in ("compare_bf16", "compare"))
        ends.append(bf16 - fp32)
    return ends


def none_below() -> list[int]:
    """Lines of which none is decided to be better than MeZO."""
    found = family("compare")["verdict"]
    assert "better" not in [*found, *family("compare_bf16")["verdict"]]
    return [len(found)]


def own(line: str) -> list[float]:
    """A setting's difference from its method's line, and half of its 95 % interval."""
    return compared("compare", line, "own", "own_half")


def settings_of_bszo() -> list[float]:
    """Largest difference of settings other than signs from BSZO's line."""
    rows = table("compare/comparison.csv")
    rows = rows[rows["line"].str.startswith("bszo,") & (rows["line"] != "bszo, signs")]
    return [rows["own"].abs().max()]


SMOLLM2 = "compare_smollm2"


def pretrained_range() -> list[float]:
    gaps = family(SMOLLM2).set_index("line")["gap"]
    assert (gaps.idxmin(), gaps.idxmax()) == ("tezo", "hizoo")
    return [-gaps.min(), gaps.max()]


def pretrained_headline() -> list[float]:
    found = family(SMOLLM2)["verdict"]
    assert found.str.startswith("not decided").all()
    gap, seeds = compared(SMOLLM2, "adam", "gap", "seeds")
    return [len(found), -gap, seeds]


# Rewards


def rewarded(line: str) -> list[float]:
    """Reward and exact answers of a line, its drift, and the score of what was learnt before, with half intervals."""
    name = "reward/comparison.csv"
    numbers = ("loss_100", "loss_100_half", "test", "test_half", "drift", "also", "also_half")
    of = [one(name, number, line=line) for number in numbers]
    return [-of[0], *of[1:]]


ANCHORED = "es, anchor at 0.03"


def anchored() -> list[float]:
    """The score of what was learnt before, with the anchor and a reward that is level with that of ES."""
    gap, half = (one("reward/comparison.csv", name, line=ANCHORED) for name in ("own", "own_half"))
    assert abs(gap) < half
    return [rewarded(ANCHORED)[5]]


def before_a_step() -> list[float]:
    """Reward, exact answers, and the score of what was learnt before."""
    of = [one("reward/comparison.csv", c, line="zero_shot") for c in ("loss_100", "test", "also")]
    return [-of[0], *of[1:]]


def untrained_reward() -> float:
    return before_a_step()[0]


def grpo(texts: int) -> list[float]:
    """The same of GRPO on the reporting seeds, at the rate that they have."""
    rows = table("reward/grpo.csv").query(f"texts == {texts} and seed < 100 and lr == 3e-4")
    assert sorted(rows["seed"]) == [1, 2, 3, 4, 5]
    found = []
    for values in (rows["val_reward_after"], 100 * rows["test_exact_after"]):
        of_all = paired_estimates(values, [values * 0]).iloc[0]
        found += [of_all["estimate"], of_all["high"] - of_all["estimate"]]
    return found


def gains() -> list[float]:
    rows = table("reward/comparison.csv").query("line != 'zero_shot'")
    gained = -rows["loss_100"] - untrained_reward()
    return [gained.min(), gained.max()]


def grpo_gains() -> list[float]:
    return [grpo(texts)[0] - untrained_reward() for texts in (4096, 2048)]


def only_bszo() -> list[float]:
    """The corrected p of the one line that is decided."""
    (found,) = (
        family("reward").query("verdict == 'worse' or verdict == 'better'").to_dict("records")
    )
    assert (found["line"], found["verdict"]) == ("bszo", "worse")
    return [found["p_holm"]]


Row = tuple[str, str, Callable[[], Any]]
SENTENCES: list[Row] = [
    # README
    *(
        (README, f"| {name} | {{:.1f}} | {{:,.0f}} |", lambda method=method: table4(method))
        for name, method in {
            "MeZO": "mezo",
            "BSZO, k = 2": "bszo",
            "LOZO, our implementation": "lozo",
            "HiZOO": "hizoo",
            "MeZO-Adam": "mezo_adam",
        }.items()
    ),
    (README, "a 13B language model in {:.0f} GB", lambda: table4("mezo")[:1]),
    (README, "moments of Adam would take {:.1f} GB.", adams_weights),
    (
        README,
        "rounding is {0:.1f} times the slope for `reviews-tiny` and {3:.1f} times for SmolLM2-135M",
        lambda: slopes("reviews-tiny") + slopes("smollm2-135m"),
    ),
    # Results
    (RESULTS, "on a CPU {} to {} times less than our implementation of the released step", philox),
    (RESULTS, "`torch` {:.1f} to {:.1f} times less (LOZO {:.1f})", released),
    (RESULTS, "{} checks with {} findings; {} findings and {} observations on", audit),
    (
        RESULTS,
        "| zero-shot | {:.1f} | {:.1f} | {:.1f} |",
        lambda: small_study("zero_shot", "fp32", "bf16", "fp16")[::2],
    ),
    (
        RESULTS,
        "| MeZO-Adam | {:.1f} ± {:.1f} | {:.1f} ± {:.1f} | collapses |",
        lambda: small_study("mezo_adam", "fp32", "bf16"),
    ),
    *(
        (
            RESULTS,
            f"| {name} | {{:.1f}} ± {{:.1f}}{first} | {{:.1f}} ± {{:.1f}} | {{:.1f}} ± {{:.1f}}{last} |",
            lambda method=method: small_study(method, "fp32", "bf16", "fp16"),
        )
        for name, method, first, last in (
            ("MeZO", "mezo", "", ""),
            ("HiZOO", "hizoo", " ¹", " ¹"),
            ("LOZO", "lozo", "", ""),
            ("BSZO", "bszo", " ²", ""),
            ("BSZO-B", "bszo_b", " ²", ""),
        )
    ),
    (RESULTS, "better than zero-shot, by {:.1f} to {:.1f} points, in every", over_zero_shot),
    (
        RESULTS,
        "zero-shot {:.1f} %, MeZO {:.1f} %, BSZO {:.1f} %",
        lambda: smollm2("zero_shot", "mezo", "bszo"),
    ),
    (RESULTS, "LoRA's step is {:.0f} times as fast", lora_faster),
    (
        RESULTS,
        "{} SIGKILLs, {} signals to stop, {} full or read-only disks, {} damaged files over {} short runs",
        faults,
    ),
    (
        README,
        "Adam's loss is {:.3f} nats lower (± {:.3f}, {} seeds)",
        lambda: [
            -gap("compare", "adam")[0],
            gap("compare", "adam")[1],
            *compared("compare", "mezo", "seeds"),
        ],
    ),
    # Rewards
    *(
        (
            REWARDS,
            f"| {name} | {{:.3f}} ± {{:.3f}} | {{:.1f}} ± {{:.1f}} | {{:.1f}} | {{:.3f}} ± {{:.3f}} |",
            partial(rewarded, line),
        )
        for name, line in {
            "MeZO": "mezo",
            "FZOO": "fzoo",
            "EGGROLL, n=32": "eggroll",
            "ES, n=32": "es",
            "BSZO": "bszo",
            "ES, n=32, with `optimizer.anchor=start`": ANCHORED,
            "ES, n=32, with `optimizer.anchor=start`, a third of the rate": "es, anchor",
            "EGGROLL, n=8": "eggroll, n=8",
            "EGGROLL, n=128": "eggroll, n=128",
        }.items()
    ),
    *(
        (
            REWARDS,
            f"| GRPO, {texts:,} texts | {{:.3f}} ± {{:.3f}} | {{:.1f}} ± {{:.1f}} | | |",
            partial(grpo, texts),
        )
        for texts in (4096, 2048)
    ),
    (REWARDS, "| before a step | {:.3f} | {:.1f} | 0 | {:.3f} |", before_a_step),
    (REWARDS, "ES falls from {:.3f} to {:.3f}.", lambda: [before_a_step()[2], rewarded("es")[5]]),
    (REWARDS, "the anchor leaves {:.3f}, and the reward does not differ significantly", anchored),
    (REWARDS, "raise the reward, by {:.3f} to {:.3f}.", gains),
    (
        REWARDS,
        "EGGROLL with 8, 32 and 128 members ends at {:.3f}, {:.3f} and {:.3f}",
        lambda: [rewarded(line)[0] for line in ("eggroll, n=8", "eggroll", "eggroll, n=128")],
    ),
    (
        REWARDS,
        "the reward by {:.3f}, and by {:.3f} with half of the texts",
        grpo_gains,
    ),
    (REWARDS, "**BSZO is worse than MeZO** (p {:.3f} after Holm's correction)", only_bszo),
    # Comparison
    (
        COMPARISON,
        "In float32 MeZO ends at {:.4f} ± {:.4f} nats, the untrained model at {:.4f}.",
        lambda: [
            last_loss("compare", "mezo"),
            *compared("compare", "mezo", "loss_100_half"),
            *compared("compare", "zero_shot", "loss_100"),
        ],
    ),
    (
        COMPARISON,
        "| ZO-Muon | {:.4f} ± {:.4f} | {:.4f} ± {:.4f} |",
        lambda: [*of_halves("compare", "zo_muon"), *gap("compare", "zo_muon")],
    ),
    (README, "**none of {} variants is better than MeZO**", none_below),
    (
        COMPARISON,
        "on Rotten Tomatoes, {} seeds.",
        lambda: compared("compare", "mezo", "seeds"),
    ),
    (
        COMPARISON,
        "MeZO-Adam ends {:.4f} ± {:.4f} above MeZO",
        lambda: gap("compare_bf16", "mezo_adam"),
    ),
    (
        COMPARISON,
        "by {:.4f} ± {:.4f} in float32 and {:.4f} ± {:.4f} in bfloat16",
        lambda: [abs(x) for sweep in ("compare", "compare_bf16") for x in gap(sweep, "adam")],
    ),
    (COMPARISON, "All six methods chose an ε of 10⁻³ or 10⁻²", bf16_wants_a_larger_eps),
    (
        COMPARISON,
        "bfloat16 costs MeZO {:.4f} nats, BSZO {:.4f} and MeZO-Adam {:.4f}",
        bf16_costs,
    ),
    (
        COMPARISON,
        "noise lie within {:.4f} of it.",
        settings_of_bszo,
    ),
    *(
        (
            COMPARISON,
            f"| {name} | {{:.4f}} ± {{:.4f}} | – |",
            partial(of_halves, "compare", line),
        )
        for name, line in {
            "BSZO-B": "bszo_b",
            "BSZO": "bszo",
            "ZO-Sign": "zo_sign",
            "FZOO": "fzoo",
            "ZO-Conservative": "zo_conservative",
        }.items()
    ),
    (COMPARISON, "At half of the budget six of 17 are worse.", six_are_worse),
    (
        README,
        "LoRA on SmolLM2-135M five of 7 are better at half of the budget",
        lambda: five_are_better()[:0],
    ),
    (COMPARISON, "BSZO by {:.2f} and MeZO-Adam by {:.2f} nats", five_are_better),
    (
        COMPARISON,
        "MeZO is at {:.4f} nats at half of the budget and at its end, and 16 of 17 lines end within {:.4f} of it",
        floor,
    ),
    (
        COMPARISON,
        "fixed noise is {:.4f} and m = 2 is {:.4f} below BSZO's line, and k = 8 is {:.4f} above it",
        settings_at_half,
    ),
    *(
        (
            COMPARISON,
            f"| {name} | "
            + ("– " if line == "mezo" else "−{:.3f} ± {:.3f} ")
            + "| {:.4f} | {:.1f} |",
            partial(pretrained_row, line),
        )
        for name, line in {
            "MeZO": "mezo",
            "MeZO-Adam": "mezo_adam",
            "BSZO": "bszo",
            "HiZOO": "hizoo",
            "TeZO": "tezo",
            "ConMeZO": "conmezo",
            "Adam": "adam",
        }.items()
    ),
    (
        COMPARISON,
        "The untrained model has {:.4f} nats",
        lambda: compared(SMOLLM2, "zero_shot", "loss_100"),
    ),
    (COMPARISON, "between {:.4f} below it (TeZO) and {:.4f} above (HiZOO, a", pretrained_range),
    (
        COMPARISON,
        "effect is {:.4f} to {:.4f} nats in float32 (median {:.4f}) and {:.4f} to {:.4f} in bfloat16 (median {:.4f})",
        lambda: [*detectable("compare"), *detectable("compare_bf16")],
    ),
    (
        COMPARISON,
        "The minimum detectable effect is {:.4f} to {:.4f} nats (median {:.4f})",
        lambda: detectable(SMOLLM2),
    ),
    (
        README,
        "none of {} differs significantly from MeZO, and Adam's loss is {:.3f} lower ({} seeds)",
        pretrained_headline,
    ),
    (
        COMPARISON,
        "If it masks all tensors, it ends {:.4f} ± {:.4f} higher",
        lambda: own("sparse_mezo, all"),
    ),
]

SETTINGS = {
    README: [
        "Python 3.11",
        "about 3.5 GB on Linux, about 0.3 GB",
        "opt-1.3b",
        "all 15 runs",
        "7 runs, tables",
        "Apache-2.0",
    ],
    RESULTS: ["1.5 million parameters", "BSZO makes 1.5 times"],
    COMPARISON: [
        "a power of 80 %",
        "95 % intervals",
        "(95 % CI half-width)",
        "p = 0.05",
        "0.005 nats. *Not decided, less than 0.005*",
        "interest of 0.01 nats",
        "0.62 nats is about the loss of a constant answer",
        "21 runs for every line",
    ],
}
"""Of each page, what is a setting and no measurement."""

NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.\d+|\d+ (?:%|GB|ms|nats|points|times|runs)(?!\w)")


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


def sentence(row: Row) -> str:
    _, template, values = row
    return template.format(*values())


@pytest.mark.parametrize("row", SENTENCES, ids=lambda row: f"{row[0]}: {row[1][:60]}")
def test_a_number_on_a_page_is_that_of_its_file(row):
    assert sentence(row) in text_of(row[0])


@pytest.mark.parametrize("page", SETTINGS)
def test_every_number_of_a_page_is_in_a_sentence_that_is_checked(page):
    text = text_of(page)
    for known in [*map(sentence, (row for row in SENTENCES if row[0] == page)), *SETTINGS[page]]:
        text = text.replace(known, "…")
    assert NUMBER.findall(text) == []
