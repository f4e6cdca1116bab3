"""Memory and time by a formula: near what an H200 measured, and what the page's table says."""

import json
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


@pytest.fixture(scope="module", autouse=True)
def _groups():
    config.register()


@pytest.fixture(scope="module")
def counts():
    runs = {name: command_line.runs([f"model={of}", "lr=1e-6"])[0] for name, of in MODELS.items()}
    return {name: fit.sizes_of(run)[:2] for name, run in runs.items()}


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
    assert "20,000 steps of 533 ms, measured on an H200 with noise=torch, in results/" in mezo
    (lora,) = command_line.runs(["model=opt-13b", "adapter=lora", "optimizer=hizoo", "lr=1e-6"])
    assert isinstance(lora.adapter, PeftAdapter)
    assert "state" not in fit.estimate(lora, None)
    for other in (["model=reviews-tiny"], ["model=opt-13b", "model.quantization=int8"]):
        (run,) = command_line.runs([*other, "adapter=lora", "lr=1e-6"])
        fit.show([run])
        assert capsys.readouterr().out.endswith("; no time is known\n"), "these were not timed"


LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008}
LLAMA |= {"num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
CHATS = "task=completion task.path=chats.jsonl "
VERDICTS = [
    ("model=opt-1.3b precision=bf16", 24, ["fits into 24 GiB, ", " GB to spare"]),
    ("model=opt-13b optimizer=hizoo", 80, ["does not fit into 80 GiB", "with precision=bf16, or with"]),
    ("model=opt-13b optimizer=hizoo", 1, ["no change here is enough"]),
    (CHATS + "model=opt-1.3b precision=bf16", 8, ["logits at most 4.94", "it would with eval_tokens=2048"]),
    ("model=opt-13b precision=bf16 model.offload=cpu", 8, ["(weights 1.26, "]),  # two blocks
    ("model=opt-1.3b optimizer=adam", 24, ["plus stored activations, not counted"]),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "gpu", "said"), VERDICTS)
def test_an_estimate_says_whether_a_run_fits_and_what_makes_it_fit(typed, gpu, said, capsys):
    """What it advises is a command line that fits."""
    words = [*typed.split(), "lr=1e-6"]
    asked = command_line.check_command_line(["--estimate", f"gpu={gpu}", *words])
    assert fit.show([cfg for cfg, _ in asked.cells], asked.gpu) == 0
    found = capsys.readouterr().out
    assert [of for of in said if of not in found] == []
    if changes := re.findall(r"with ([a-z_.]+=[^;,]*)(?=[,;])", found):
        for change in changes:
            (run,) = command_line.runs([*words, *change.split()])
            assert "fits into" in fit.estimate(run, None, gpu)


def test_a_models_own_config_decides_its_size_and_without_one_it_says_what_to_write(
    tmp_path, capsys
):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (own,) = command_line.runs(["model=opt-13b", f"model.path={tmp_path}", "lr=1e-6"])
    assert fit.sizes_of(own).total == 6_738_415_616, "Llama 2's 7B"
    (hub,) = command_line.runs(["model=opt-13b", "model.path=nobody/has-it", "lr=1e-6"])
    assert fit.show([hub]) == 2
    said = capsys.readouterr().err
    written = json.loads(re.search(r"config\.json by hand, as (\{.*\})", said)[1])
    assert written == LLAMA
