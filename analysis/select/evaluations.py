"""The evaluations of one run, out of its history."""

import pandas as pd

EVALUATED = ("train/forwards", "time/step_s", "eval/val_accuracy", "eval/val_loss")


def evaluations(history: pd.DataFrame) -> pd.DataFrame:
    """The rows of a run with a validation accuracy.

    Returns:
        `step`, `forwards`, `minutes` (of steps), `accuracy` (fraction), `loss` (nats).
    """
    rows = history.reindex(columns=["step", *EVALUATED])
    forwards = rows["train/forwards"].where(rows["step"] > 0, 0.0)
    minutes = rows["time/step_s"].fillna(0.0).cumsum() / 60
    frame = pd.DataFrame(
        {
            "step": rows["step"].astype(float),
            "forwards": forwards.astype(float),
            "minutes": minutes.where(rows["time/step_s"].notna() | (rows["step"] == 0)),
            "accuracy": rows["eval/val_accuracy"].astype(float),
            "loss": rows["eval/val_loss"].astype(float),
        }
    )
    return frame[frame["accuracy"].notna()].reset_index(drop=True)
