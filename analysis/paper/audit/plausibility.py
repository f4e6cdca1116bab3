"""Checks of the paper for plausibility: times, memory, what is listed and not shown, coincidences, trivial answers.

Most of what is found here contradicts nothing; it is what a reader of a number should know.
"""

from collections.abc import Iterator
from typing import Any

from analysis.paper.audit.outcome import Outcome, claim, seen, signed
from analysis.paper.audit.statements import LLMS
from analysis.paper.names import PAPER_MODELS, PAPER_TASKS, method_label
from analysis.paper.printed_numbers import AVERAGE, METHODS, TEST_SIZES, Paper

WSC_MAJORITY = (
    66  # of the 104 test examples of WSC carry the answer No: what a constant answer gets
)


def plausibility(paper: Paper) -> Iterator[Outcome]:
    """All of them."""
    yield from _efficiency(paper)
    yield from _memory_complexity(paper)
    yield from _coverage(paper)
    yield from _coincidences(paper)
    yield from _constant_answers(paper)


def _by_model(paper: Paper, quantity: str) -> Any:
    """Table 4: a row per model, a column per method."""
    rows = paper.rows(f"table4 quantity={quantity}")
    return rows.pivot(index="model", columns="method", values="value")


def _efficiency(paper: Paper) -> Iterator[Outcome]:
    """Section 5.4: who is fast."""
    times = _by_model(paper, "step_ms")
    for model in LLMS:
        fastest = list(times.loc[model].nsmallest(2).index)
        yield claim(
            "section 5.4",
            f"BSZO and LOZO are the fastest on {PAPER_MODELS[model]}",
            set(fastest) == {"bszo", "lozo"},
            "",
            ", ".join(f"{method_label(m)} {times.loc[model, m]:.1f}" for m in fastest),
        )
    for other in ("mezo", "bszo"):
        ratios = ", ".join(
            f"{PAPER_MODELS[m]} {times.loc[m, 'hizoo'] / times.loc[m, other]:.2f}" for m in LLMS
        )
        yield seen(
            "section 5.4",
            f"HiZOO is roughly 2 times slower than {method_label(other)}",
            "roughly 2",
            ratios,
        )
    faster = [m for m in LLMS if times.loc[m, "bszo"] < times.loc[m, "mezo"]]
    yield seen(
        "Table 4 and section 5.1",
        "time of 3 forward passes (BSZO) against 2 (MeZO)",
        "",
        ", ".join(
            f"{PAPER_MODELS[m]} {times.loc[m, 'bszo']:.1f} against {times.loc[m, 'mezo']:.1f} ms"
            for m in LLMS
        ),
        "per forward pass "
        + ", ".join(
            f"{times.loc[m, 'bszo'] / 3:.0f} against {times.loc[m, 'mezo'] / 2:.0f}" for m in LLMS
        )
        + " ms; HiZOO's 3 passes "
        + ", ".join(f"{times.loc[m, 'hizoo'] / 3:.0f}" for m in LLMS)
        + "; the tables do not say why",
        ok=not faster,
    )


def _memory_complexity(paper: Paper) -> Iterator[Outcome]:
    """Table 2's additional space against the additional memory of Table 4, over MeZO."""
    memory = _by_model(paper, "memory_gb")
    extra = memory.sub(memory["mezo"], axis=0).loc[list(LLMS)]
    for method in ("lozo", "bszo"):
        claimed = paper.rows(f"table2 method={method} quantity=additional_space")["printed"].iloc[0]
        values = extra[method]
        yield seen(
            "Tables 2 and 4",
            f"additional space of {method_label(method)} over MeZO",
            claimed,
            ", ".join(f"{PAPER_MODELS[str(m)]} {signed(v, 1)} GB" for m, v in values.items()),
            "does not grow with the model" if method == "bszo" else "",
            ok=bool((values.abs() < 0.05).all()),
        )
    weights = {"opt-1.3b": 1.3 * 4, "mistral-7b": 7 * 2, "opt-13b": 13 * 2}  # GB of θ, by its name
    for method, copies in (("mezo_adam", 2), ("hizoo", 1)):
        ratio = {m: extra.loc[m, method] / (copies * weights[m]) for m in LLMS}
        yield seen(
            "Table 4",
            f"additional memory of {method_label(method)} over MeZO, in units of {copies} per parameter",
            "",
            ", ".join(
                f"{PAPER_MODELS[m]} {extra.loc[m, method]:.1f} GB = {r:.2f} times"
                for m, r in ratio.items()
            ),
            "parameters counted by the models' names",
            ok=all(abs(r - 1) <= 0.1 for r in ratio.values()),
        )


def _coverage(paper: Paper) -> Iterator[Outcome]:
    """Every data set of Table 6 has a result, and every model × method of Table 4 is one of Table 3."""
    shown = set(paper.cells[paper.cells["table"].isin((1, 3, 5, 11, 12))]["task"])
    for task in paper.rows("table6")["task"].unique():
        yield claim(
            "section 5.1 and Table 6",
            f"results on {PAPER_TASKS[task]}",
            task in shown,
            "listed as a data set of the experiments",
            "in no table" if task not in shown else "",
        )
    for _, row in paper.rows("table4 quantity=memory_gb").iterrows():
        twin = paper.find(3, model=row["model"], method=row["method"], task=AVERAGE)
        yield seen(
            "Tables 3 and 4",
            f"memory and accuracy of {method_label(row['method'])} on {PAPER_MODELS[row['model']]}",
            f"{row['printed']} GB, no accuracy",
            "",
            "the caption of Table 3 says that it can crash in fp16",
            ok=twin is not None and twin["status"] == "printed",
        )


def _coincidences(paper: Paper) -> Iterator[Outcome]:
    """Runs of two methods in Table 11 that agree too often: the same number at least 4 times of 5."""
    runs: Any = paper.rows("table11")
    for task, of_task in runs.groupby("task", sort=False):
        by_method = {m: list(of_task[of_task["method"] == m]["printed"]) for m in METHODS}
        for i, first in enumerate(METHODS):
            for second in METHODS[i + 1 :]:
                rest = list(by_method[second])
                common = 0
                for value in by_method[first]:
                    if value in rest:
                        rest.remove(value)
                        common += 1
                yield seen(
                    "Table 11",
                    f"{PAPER_TASKS[str(task)]}: runs that {method_label(first)} and {method_label(second)} share",
                    f"{', '.join(by_method[first])} and {', '.join(by_method[second])}",
                    f"{common} in common",
                    f"in the same order; a run has {TEST_SIZES[str(task)]} + 1 possible values",
                    ok=common < 4,
                )


def _constant_answers(paper: Paper) -> Iterator[Outcome]:
    """WSC accuracies that a model gets by always answering No."""
    n = TEST_SIZES["wsc"]
    cells: Any = paper.rows("table3 task=wsc")
    cells = cells[cells["status"] == "printed"]
    right = (cells["value"] * n / 100).round()
    same, below = cells[right == WSC_MAJORITY], cells[right < WSC_MAJORITY]
    yield seen(
        "Table 3, WSC",
        f"accuracies against {WSC_MAJORITY} of {n}, what the constant answer No gets",
        "",
        f"{len(same)} of {len(cells)} cells equal it, {len(below)} are below",
        "equal: "
        + ", ".join(
            f"{method_label(r['method'])} on {PAPER_MODELS[r['model']]}" for _, r in same.iterrows()
        ),
        ok=same.empty and below.empty,
    )
