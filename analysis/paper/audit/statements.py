"""Checks of the paper that are statements: who is best, what grows, what is fast; each against the tables.

A statement that holds counts as a check without a finding. A statement that is vague ("roughly", "often") is never
called wrong: the numbers behind it are an observation.
"""

from collections.abc import Iterator
from typing import Any

from analysis.paper.audit.outcome import Outcome, claim, seen, signed
from analysis.paper.names import PAPER_MODELS, PAPER_TASKS, method_label
from analysis.paper.printed_numbers import AVERAGE, BASELINES, METHODS, OURS, Paper

LLMS = ("opt-1.3b", "mistral-7b", "opt-13b")


def claims(paper: Paper) -> Iterator[Outcome]:
    """All statements, in the order of the paper."""
    yield from _best_cells(paper)
    yield from _largest_lead(paper)
    yield from _variance(paper)
    yield from _gains_by_size(paper)
    yield from _variant_lead(paper)
    yield from _quoted_baselines(paper)
    yield from _degradation(paper)
    yield from _collapses(paper)
    yield from _ablations(paper)


def accuracies(paper: Paper) -> Any:
    """The accuracies (%) of Tables 1 and 3: a row per model and task, a column per method; NaN for * and –."""
    cells = paper.cells
    kept = (cells["table"] == 3) | ((cells["table"] == 1) & (cells["quantity"] == "mean"))
    frame = cells[kept].pivot_table(
        index=["model", "task"], columns="method", values="value", sort=False, dropna=False
    )
    return frame[list(METHODS)].dropna(how="all")


def _best_cells(paper: Paper) -> Iterator[Outcome]:
    """Where the text says which method is best; and how often the two variants are, in all."""
    table = accuracies(paper)
    for location, model, task, method, place in (
        ("section 5.2", "roberta-large", "avg", "bszo_b", 1),
        ("section 5.2", "roberta-large", "avg", "bszo", 2),
        ("section 5.2", "roberta-large", "sst2", "bszo", 1),
        ("section 5.2", "roberta-large", "rte", "bszo_b", 1),
        ("section 5.2", "roberta-large", "wic", "bszo_b", 1),
        ("section 5.3, OPT-1.3B", "opt-1.3b", "avg", "bszo", 1),
        ("section 5.3, OPT-1.3B", "opt-1.3b", "rte", "bszo", 1),
        ("section 5.3, OPT-1.3B", "opt-1.3b", "wic", "bszo", 1),
        ("section 5.3, OPT-1.3B", "opt-1.3b", "wsc", "bszo", 1),
        ("section 5.3, OPT-1.3B", "opt-1.3b", "copa", "bszo_b", 1),
        ("section 5.3, OPT-1.3B", "opt-1.3b", "trec", "bszo_b", 1),
        ("section 5.3, Mistral-7B", "mistral-7b", "sst2", "bszo", 1),
        ("section 5.3, Mistral-7B", "mistral-7b", "wic", "bszo", 1),
        ("section 5.3, Mistral-7B", "mistral-7b", "rte", "bszo_b", 1),
        ("section 5.3, Mistral-7B", "mistral-7b", "trec", "bszo_b", 1),
        ("section 5.3, OPT-13B", "opt-13b", "wic", "bszo", 1),
    ):
        row = table.loc[(model, task)]
        found = int((row > row[method]).sum()) + 1
        yield claim(
            location,
            f"{method_label(method)} as number {place} on {PAPER_MODELS[model]}, {PAPER_TASKS[task]}",
            found == place,
            f"{row[method]:g}",
            f"number {found}",
        )
    cells = table[table.index.get_level_values("task") != AVERAGE]
    best = cells[list(BASELINES)].max(axis=1)
    for method in OURS:
        won, lost = int((cells[method] > best).sum()), int((cells[method] < best).sum())
        yield seen(
            "abstract",
            f"{method_label(method)} outperforms the baselines across various tasks",
            "various tasks",
            f"above every baseline on {won} of {len(cells)} model × task cells, below the best on {lost}",
        )


def _largest_lead(paper: Paper) -> Iterator[Outcome]:
    """Abstract: "up to" the lead of BSZO over MeZO on OPT-13B."""
    row = accuracies(paper).loc[("opt-13b", AVERAGE)]
    claimed = paper.prose[paper.prose["location"] == "abstract"].iloc[0]["printed"]
    largest = row["bszo"] - row[list(BASELINES)].min()
    yield claim(
        "abstract",
        "largest average improvement of BSZO on OPT-13B",
        abs(largest - float(claimed)) < 0.005,
        f"up to {claimed}",
        f"{largest:.2f}",
        difference=signed(float(claimed) - largest, 2),
        remark="; ".join(
            f"over {method_label(m)} {row['bszo'] - row[m]:.2f}, BSZO-B {row['bszo_b'] - row[m]:.2f}"
            for m in BASELINES
        ),
    )


def _variance(paper: Paper) -> Iterator[Outcome]:
    """Section 5.2: BSZO has notably lower variance across tasks."""
    stds: Any = paper.rows("table1 quantity=std").pivot(
        index="task", columns="method", values="value"
    )
    lower = stds["bszo"] < stds[list(BASELINES)].min(axis=1)
    above = [
        f"{PAPER_TASKS[str(task)]}: {stds.loc[task, 'bszo']:.2f} against "
        f"{method_label(str(stds.loc[task, list(BASELINES)].idxmin()))}'s {stds.loc[task, list(BASELINES)].min():.2f}"
        for task in stds.index[~lower]
    ]
    yield claim(
        "section 5.2",
        "BSZO has a lower standard deviation than every baseline",
        bool(lower.all()),
        "across tasks",
        f"on {int(lower.sum())} of {len(lower)} tasks",
        remark="not on " + "; ".join(above) if above else "",
    )


def _gains_by_size(paper: Paper) -> Iterator[Outcome]:
    """Section 5.3: gains increase as model size grows."""
    averages = accuracies(paper).xs(AVERAGE, level="task").loc[list(LLMS)]
    for method in OURS:
        gains = [float(gain) for gain in averages[method] - averages["mezo"]]
        yield claim(
            "section 5.3",
            f"average gain of {method_label(method)} over MeZO, the best baseline, grows with the model",
            gains == sorted(gains),
            "gains increasing",
            ", ".join(f"{PAPER_MODELS[m]} {gain:.2f}" for m, gain in zip(LLMS, gains, strict=True)),
        )


def _variant_lead(paper: Paper) -> Iterator[Outcome]:
    averages = accuracies(paper).xs(AVERAGE, level="task").loc[list(LLMS)]
    leads = averages["bszo_b"] - averages["bszo"]
    yield seen(
        "section 5.3",
        "BSZO-B is ahead of BSZO on average",
        "typically",
        ", ".join(f"{PAPER_MODELS[str(m)]} {signed(v, 2)}" for m, v in leads.items()),
        ok=bool((leads > 0).all()),
    )


def _quoted_baselines(paper: Paper) -> Iterator[Outcome]:
    """A single-task lead that is quoted against a baseline which is not the best one."""
    table = accuracies(paper)
    leads = paper.prose[(paper.prose["check"] == "difference")]
    for quoted in leads.to_dict("records"):
        if not quoted["of"].startswith(("table1", "table3")):
            continue
        of: Any = paper.rows(quoted["of"]).iloc[0]
        against: Any = paper.rows(quoted["against"]).iloc[0]
        if against["method"] not in BASELINES:
            continue
        row = table.loc[(of["model"], of["task"])]
        if of["task"] != AVERAGE:
            best = str(row[list(BASELINES)].idxmax())
            yield claim(
                quoted["location"],
                f"{quoted['description']}: is that the best baseline",
                best == against["method"],
                quoted["printed"],
                f"{of['value'] - row[best]:.2f} over {method_label(best)}",
                difference=signed(float(quoted["printed"]) - (of["value"] - row[best]), 2),
                kind="basis",
            )
        elif of["table"] == 3:
            yield _same_tasks(
                quoted, str(of["model"]), str(of["method"]), str(against["method"]), table
            )


def _same_tasks(
    quoted: dict[Any, Any], model: str, ours: str, baseline: str, table: Any
) -> Outcome:
    """A lead between two averages: do both average the same tasks."""
    of_model = table.loc[model].drop(index=AVERAGE)[[ours, baseline]]
    both = of_model.dropna()
    lead = float((both[ours] - both[baseline]).mean())
    return claim(
        quoted["location"],
        f"{quoted['description']}: both averages over the same tasks",
        len(both) == len(of_model),
        quoted["printed"],
        f"{lead:.2f} on the {len(both)} tasks that both have",
        difference=signed(float(quoted["printed"]) - lead, 2),
        kind="basis",
        remark=""
        if len(both) == len(of_model)
        else "the other average leaves out its collapsed TREC",
    )


def _degradation(paper: Paper) -> Iterator[Outcome]:
    """Section 5.3: on OPT-13B every baseline is worse than on OPT-1.3B, BSZO and BSZO-B stay stable."""
    table = accuracies(paper)
    change = table.loc["opt-13b"] - table.loc["opt-1.3b"]
    for method in BASELINES:
        rises = change[method].drop(index=AVERAGE)
        rises = rises[rises > 0]
        yield claim(
            "section 5.3, robustness",
            f"{method_label(method)} is worse on OPT-13B than on OPT-1.3B, on average",
            bool(change.loc[AVERAGE, method] < 0),
            "varying degrees of degradation",
            signed(change.loc[AVERAGE, method], 2),
        )
        if len(rises):
            yield seen(
                "section 5.3, robustness",
                f"{method_label(method)} on single tasks, OPT-13B against OPT-1.3B",
                "degradation",
                "better on "
                + ", ".join(f"{PAPER_TASKS[str(t)]} {signed(v, 2)}" for t, v in rises.items()),
            )
    for method in OURS:
        falls = change[method].drop(index=AVERAGE)
        falls = falls[falls < 0]
        yield seen(
            "section 5.3, robustness",
            f"{method_label(method)} on single tasks, OPT-13B against OPT-1.3B",
            "stable",
            f"average {signed(change.loc[AVERAGE, method], 2)}; worse on "
            + ", ".join(f"{PAPER_TASKS[str(t)]} {signed(v, 2)}" for t, v in falls.items()),
        )


def _collapses(paper: Paper) -> Iterator[Outcome]:
    half: Any = paper.rows("table3 model=mistral-7b,opt-13b method=mezo,mezo_adam,hizoo,lozo")
    half = half[(half["task"] != AVERAGE) & (half["status"] != "absent")]
    collapsed = int((half["status"] == "collapsed").sum())
    yield seen(
        "section 6",
        "existing methods often collapse under fp16 and bf16",
        "often",
        f"{collapsed} of {len(half)} baseline cells are *",
        "at each method's best learning rate; Figure 1 shows others, of which no number is printed",
    )


def _ablations(paper: Paper) -> Iterator[Outcome]:
    """Section 5.5."""

    def column(part: str, task: str, noise: str = "with") -> Any:
        rows = paper.rows(f"table5 part={part} task={task} adaptive_noise={noise}")
        return rows.set_index("k")["value"]

    def listed(values: Any) -> str:
        return ", ".join(f"k = {k}: {signed(v, 2, plus=False)}" for k, v in values.items())

    sst2, rte_a, rte_b = column("a", "sst2"), column("a", "rte"), column("b", "rte")
    yield claim(
        "section 5.5", "with m = k, SST-2 peaks at k = 8", sst2.idxmax() == "8", "", listed(sst2)
    )
    yield seen(
        "section 5.5",
        "with m = k, accuracy generally grows with k",
        "generally",
        f"SST-2 {listed(sst2)}; RTE {listed(rte_a)}",
        ok=bool(sst2.is_monotonic_increasing and rte_a.is_monotonic_increasing),
    )
    yield claim(
        "section 5.5",
        "with m = k + 1, RTE improves consistently with k",
        bool(rte_b.is_monotonic_increasing),
        "consistently",
        listed(rte_b),
        remark="read as k grows; the other reading, over m = k, fails at k = 4",
    )
    boosts = rte_b - rte_a
    within = int(((boosts >= 1) & (boosts <= 2)).sum())
    yield claim(
        "section 5.5",
        "m = k + 1 gains 1 to 2 points over m = k on RTE at most k",
        within > len(boosts) / 2,
        "1 to 2 points",
        listed(boosts),
        remark=f"within 1 to 2 at {within} of {len(boosts)} k; the two examples given are above 2",
    )
    gaps = column("c", "rte") - column("c", "rte", "without")
    yield claim(
        "section 5.5",
        "the gap between with and without adaptive noise grows with k",
        bool(gaps.is_monotonic_increasing),
        "",
        listed(gaps),
    )
