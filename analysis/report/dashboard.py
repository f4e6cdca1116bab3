"""The W&B workspace of this suite, as code.

    zo dashboard --entity me --project zo             make it at W&B (needs a login)
    zo dashboard --entity me --project zo --dry-run   write what would be sent, and send nothing

There runs are looked at while they go on, grouped by method and learning rate: loss and accuracy, BSZO's signals,
efficiency, collapses. Every key is one of docs/reference/run-directory.md, and a test holds them against what runs log.

Needs the extra `dashboards`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from analysis.logs.cloud import as_log_error
from analysis.report.figures.curves import SIGNALS
from analysis.report.markdown import write_texts

FORWARDS, ACCURACY, BEST = "train/forwards", "eval/val_accuracy", "best/test_accuracy"
BSZO_SIGNALS = {key: words[0].upper() + words[1:] for key, words in SIGNALS.items()}
OTHER_SIGNALS = {"optim/slope": "Slope (MeZO, LOZO, HiZOO)", "optim/curvature": "Curvature (HiZOO)"}
EFFICIENCY = {
    "time/step_ms_median": "Milliseconds per step, median",
    "time/forward_ms_median": "of which forward passes",
    "time/perturb_ms_median": "of which passes over the weights",
    "mem/peak_gib": "Peak memory, GiB",
    "mem/state_mib": "Kept between steps, MiB",
    "run/forwards_per_step": "Forward passes per step",
}
METHOD, RATE = "optimizer.name", "lr"


def make(entity: str, project: str, directory: Path | None) -> list[str] | list[Path]:
    """Make the workspace at W&B, or write what would be sent into a directory, which sends nothing; where it is."""
    with as_log_error("W&B did not take the workspace"):
        made = workspace(entity, project)
        if directory is None:
            return [made.save().url]
        text = made._to_model().model_dump_json(by_alias=True, indent=2)
    return write_texts(directory, {"workspace.json": text})


def workspace(entity: str, project: str) -> Any:
    """The workspace: every run, grouped by method and learning rate."""
    smooth: dict[str, Any] = {"smoothing_factor": 0.9, "smoothing_type": "exponential"}
    loss = [
        _line("Training loss", "Step", "train/loss", **smooth),
        _line("Validation accuracy over steps", "Step", ACCURACY),
        _line("Validation accuracy over forward passes", FORWARDS, ACCURACY),
        _line("Test accuracy at each new best", "Step", "eval/test_accuracy"),
        _over_rates("Test accuracy over the learning rate", BEST),
        _bar(BEST, "Test accuracy at the best step"),
    ]
    collapses = _over_rates("Step of the collapse over the learning rate", "run/collapse_step")
    sections = [
        ws.Section(name="Loss and accuracy", is_open=True, panels=loss),
        ws.Section(name="BSZO's own signals", is_open=True, panels=_lines(BSZO_SIGNALS)),
        ws.Section(name="Signals of other methods", panels=_lines(OTHER_SIGNALS)),
        ws.Section(
            name="Efficiency", is_open=True, panels=[_bar(*cost) for cost in EFFICIENCY.items()]
        ),
        ws.Section(name="Collapses", panels=[collapses]),
    ]
    return ws.Workspace(
        entity=entity,
        project=project,
        name="Zeroth-order fine-tuning",
        sections=sections,
        runset_settings=ws.RunsetSettings(groupby=[ws.Config(METHOD), ws.Config(RATE)]),
        settings=ws.WorkspaceSettings(max_runs=100),
    )


def _line(title: str, x: str, y: str, **settings: Any) -> Any:
    return wr.LinePlot(
        title=title, x=x, y=[y], groupby_aggfunc="mean", groupby_rangefunc="minmax", **settings
    )


def _lines(titles: Mapping[str, str]) -> list[Any]:
    return [_line(title, "Step", key) for key, title in titles.items()]


def _over_rates(title: str, key: str) -> Any:
    return wr.ScatterPlot(title=title, x=wr.Config(RATE), y=wr.SummaryMetric(key), log_x=True)


def _bar(key: str, title: str) -> Any:
    return wr.BarPlot(title=title, metrics=[key], groupby=METHOD, groupby_aggfunc="median")
