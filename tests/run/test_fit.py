"""Memory and time by a formula: near what an H200 measured, and what the page's table says."""

import re
from pathlib import Path

import pandas as pd
import pytest

from zo import config
from zo.config import command_line
from zo.lm.adapters.config import PeftAdapter
from zo.optim import OPTIMIZERS
from zo.run import fit

ROOT = Path(__file__).parents[2]
MODELS = {"OPT-1.3B": "opt-1.3b", "Mistral-7B": "mistral-7b", "OPT-13B": "opt-13b"}
ROWS = {"ZO without state, as MeZO": "mezo", "HiZOO": "hizoo", "MeZO-Adam": "mezo_adam"}
ROWS |= {"Adam, by backpropagation": "adam"}
CARDS, CONTEXT_GB = (24, 40, 80), 1.0


@pytest.fixture(scope="module")
def counts() -> dict[str, tuple[int, int]]:
    config.register()
    runs = {name: command_line.runs([f"model={of}", "lr=1e-6"])[0] for name, of in MODELS.items()}
    return {name: fit.sizes(run) for name, run in runs.items()}


def test_the_formula_gives_what_the_h200_measured(counts):
    measured = pd.read_csv(ROOT / "results" / "measured" / "table4" / "efficiency.csv")
    measured = measured[measured["series"].str.contains("measured")]
    assert len(measured) == 30
    for row in measured.to_dict("records"):
        model = row["series"].split(", ")[1]
        settings, size = OPTIMIZERS[row["method"]].config(), 4 if model == "OPT-1.3B" else 2
        parts = fit.step_gb(settings, size, counts[model])
        if row["quantity"].startswith("peak"):
            assert sum(parts.values()) == pytest.approx(row["y"], rel=0.025), row["series"]
        else:
            assert fit.step_ms(settings, parts["weights"]) == pytest.approx(row["y"], rel=0.2)


def test_the_pages_table_is_the_formulas(counts):
    lines = [f"| | {' | '.join(MODELS)} |", "|---" * (1 + len(MODELS)) + "|"]
    for words, method in ROWS.items():
        settings = OPTIMIZERS[method].config()
        needed = [sum(fit.step_gb(settings, 2, counts[model]).values()) for model in MODELS]
        cards = [next((c for c in CARDS if gb + CONTEXT_GB <= c), "none") for gb in needed]
        cells = (f"{gb:.1f} ({card})" for gb, card in zip(needed, cards, strict=True))
        lines.append(f"| {words} | {' | '.join(cells)} |")
    page = (ROOT / "docs" / "will-it-fit.md").read_text(encoding="utf-8")
    found = re.search(r"(?:^\|.*\n)+", page, re.M)
    assert found is not None
    assert found[0] == "\n".join(lines) + "\n"
    assert len(page.split()) <= 400


def test_an_estimate_is_one_line_from_the_configuration_alone(counts, capsys):
    """No weights are read: the models are not here."""
    asked = command_line.check_command_line(
        ["--estimate", "-m", "model=opt-13b", "precision=bf16", "optimizer=hizoo,mezo", "lr=1e-6"]
    )
    assert asked is not None
    assert asked.estimate
    assert fit.show(cfg for cfg, _ in asked.cells) == 0
    hizoo, mezo = capsys.readouterr().out.splitlines()
    assert hizoo.startswith(
        "opt-13b bf16 hizoo: about 55.5 GB (weights 25.7, state 25.7, scratch 4.12)"
    )
    assert "20,000 steps of 533 ms, measured on an H200, in results/" in mezo
    (lora,) = command_line.runs(["model=opt-13b", "adapter=lora", "optimizer=hizoo", "lr=1e-6"])
    assert isinstance(lora.adapter, PeftAdapter)
    assert "state" not in fit.estimate(lora, None)
    for other in (["model=reviews-tiny"], ["model=opt-13b", "model.quantization=int8"]):
        (run,) = command_line.runs([*other, "adapter=lora", "lr=1e-6"])
        fit.show([run])
        assert capsys.readouterr().out.endswith("; no time is known\n"), "these were not timed"
