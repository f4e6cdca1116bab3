"""The W&B workspace and report of this suite, as code.

    python -m analysis dashboard --entity me --project zo             make both at W&B (needs a login)
    python -m analysis dashboard --entity me --project zo --dry-run   write what would be sent, and send nothing

The workspace is where runs are looked at while they go on: loss and accuracy by method, BSZO's signals,
efficiency, collapses. The report has the same per method, its runs grouped by learning rate. Every
key is one of docs/design.md, and a test holds them against what runs log.

Needs the extra `dashboards`. A dry run describes the report without its runs' project, which only W&B can look up.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from analysis.logs.run_file import LogError
from analysis.paper.names import UNTRAINED
from analysis.report.figures.histories import SIGNALS
from analysis.report.markdown import write_texts
from analysis.report.style import LOOKS, look

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
HALF, THIRD = 12, 8  # of a report's 24 columns
ROW = 6  # height of a panel


def make(entity: str, project: str, directory: Path | None) -> list[str] | list[Path]:
    """Make workspace and report at W&B, or write what would be sent; where they are.

    Args:
        entity: W&B's user or team.
        project: its project.
        directory: where a dry run writes; None sends.
    """
    try:
        made = {"workspace": workspace(entity, project)}
        made |= {"report": report(entity, project, with_runs=directory is None)}
        if directory is None:
            return [one.save().url for one in made.values()]
        texts = {
            f"{name}.json": one._to_model().model_dump_json(by_alias=True, indent=2)
            for name, one in made.items()
        }
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise LogError(f"W&B did not take the dashboards: {reason[0]}") from error
    return write_texts(directory, texts)


def workspace(entity: str, project: str) -> Any:
    """The workspace: every run, grouped by method and learning rate."""
    loss = [
        _loss(),
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
        ws.Section(name="Efficiency", is_open=True, panels=_costs()),
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


def report(entity: str, project: str, with_runs: bool) -> Any:
    """The report: loss and accuracy per method by learning rate, BSZO's signals, efficiency."""
    place: dict[str, Any] = {"entity": entity, "project": project} if with_runs else {}
    by_method, by_rate = f"config.{METHOD}", f"config.{RATE}"
    blocks: list[Any] = [wr.H1("Loss and accuracy, per method by learning rate")]
    for method in [method for method in LOOKS if method not in UNTRAINED]:
        name, only = look(method).label, ws.And(ws.Config(METHOD) == method)
        runs = wr.Runset(name=name, filters=only, groupby=[by_rate], **place)
        panels = [_loss(), _line("Validation accuracy", "Step", ACCURACY)]
        blocks += [wr.H2(name), _grid(runs, panels, HALF)]
    ours = ws.And(ws.Config(METHOD).isin(["bszo", "bszo_b"]))
    keys = [by_method, by_rate]
    bszo = wr.Runset(name="BSZO and BSZO-B", filters=ours, groupby=keys, **place)
    every = wr.Runset(name="every run", groupby=[by_method], **place)
    costs = [*_costs(), _line("Validation accuracy over forward passes", FORWARDS, ACCURACY)]
    blocks += [wr.H1("BSZO's own signals"), _grid(bszo, _lines(BSZO_SIGNALS), THIRD)]
    blocks += [wr.H1("Efficiency"), _grid(every, costs, THIRD)]
    return wr.Report(
        entity=entity,
        project=project,
        title="Zeroth-order fine-tuning",
        description="Made by python -m analysis dashboard.",
        width="fluid",
        blocks=blocks,
    )


def _line(title: str, x: str, y: str, **settings: Any) -> Any:
    return wr.LinePlot(
        title=title, x=x, y=[y], groupby_aggfunc="mean", groupby_rangefunc="minmax", **settings
    )


def _lines(titles: Mapping[str, str]) -> list[Any]:
    return [_line(title, "Step", key) for key, title in titles.items()]


def _loss() -> Any:
    smooth = {"smoothing_factor": 0.9, "smoothing_type": "exponential"}
    return _line("Training loss", "Step", "train/loss", **smooth)


def _over_rates(title: str, key: str) -> Any:
    return wr.ScatterPlot(title=title, x=wr.Config(RATE), y=wr.SummaryMetric(key), log_x=True)


def _costs() -> list[Any]:
    return [_bar(key, title) for key, title in EFFICIENCY.items()]


def _bar(key: str, title: str) -> Any:
    return wr.BarPlot(title=title, metrics=[key], groupby=METHOD, groupby_aggfunc="median")


def _grid(runset: Any, panels: list[Any], width: int) -> Any:
    """Panels of one width, side by side in 24 columns."""
    beside = 24 // width
    for i, panel in enumerate(panels):
        x, y = i % beside * width, i // beside * ROW
        panel.layout = wr.Layout(x=x, y=y, w=width, h=ROW)
    return wr.PanelGrid(runsets=[runset], panels=panels)
