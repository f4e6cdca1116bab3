"""The comparison of LoRA with all parameters: what stands in its table and its picture."""

import pandas as pd

from benchmarks import adapters


def made_rows(*losses):
    steps = [10 * (i + 1) for i in range(len(losses))]
    return pd.DataFrame(
        {
            "step": steps,
            "eval/val_loss": losses,
            "eval/val_accuracy": 0.75,
            "time/cpu_s": 0.5,
            "mem/peak_gib": 1.25,
        }
    )


def test_a_case_is_shown_at_its_best_rate_from_the_model_without_a_step(
    monkeypatch, tmp_path, capsys
):
    runs = {
        "lr=0.1": made_rows(0.7, 0.6),
        "lr=0.2": made_rows(0.6, 0.5),
        "lr=0.3": made_rows(0.4, 0.9),
    }

    def rows_of(overrides):
        if "optimizer=zero_shot" in overrides:
            return pd.DataFrame(
                {"step": [0], "eval/val_loss": [0.8], "eval/val_accuracy": [0.5]}
            ), ""
        return runs.get(overrides[-1], pd.DataFrame()), "12"

    monkeypatch.setattr(adapters, "rows_of", rows_of)
    rates = {"reviews-tiny": (0.1, 0.2, 0.3, 0.4)}
    case = adapters.Case("MeZO, LoRA", "mezo", ("optimizer=mezo",), rates)
    monkeypatch.setattr(adapters, "CASES", (case,))
    monkeypatch.setattr(adapters, "provenance_of", lambda *_: {})
    adapters.show("reviews-tiny", [], tmp_path)
    header, _, line = (tmp_path / "reviews-tiny.md").read_text().splitlines()
    assert header.split(" | ")[2:4] == ["trained", "steps"]
    assert line == "| MeZO, LoRA | 0.2 | 12 | 20 | 0.8 | 0.5 | 50 | 75 | 0.5 | 1.25 |"
    assert capsys.readouterr().out.splitlines()[-1] == line
    drawn = pd.read_csv(tmp_path / "reviews-tiny.csv")
    assert drawn["y"].tolist() == [0.8, 0.6, 0.5] * 2
    assert drawn["x"].tolist() == [0, 10, 20, 0, 0.5, 1.0]
