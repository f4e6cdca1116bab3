"""The launchers behind `hydra/launcher=basic`, `slurm` and `local`; Hydra looks for them in packages of this name."""

import gc
import signal
from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from launch import profile
from zo.run import signals

profile.register()
ConfigStore.instance().store(  # instead of Hydra's own, which ends at the first run that fails
    group="hydra/launcher",
    name="basic",
    node={"_target_": "hydra_plugins.zo_launchers.InProcessLauncher"},
    provider="zo",
)


class _SweepLauncher(Launcher):
    """Makes a whole sweep at once: the overrides are composed again, faster than Hydra composes each run."""

    def __init__(self, **_: Any):
        self._overrides: list[str] = []
        self._sweep: str | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keeps what was typed."""
        given = config.hydra.overrides
        self._overrides = [str(override) for override in [*given.task, *given.hydra]]
        self._sweep = config.hydra.runtime.choices.get("sweep")

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Makes the runs, shows how they go, and ends the process: with 0 if all of them finished.

        Raises:
            SystemExit: Always.
        """
        GlobalHydra.instance().clear()  # what follows composes on its own
        signals.leave(self._make())

    def _make(self) -> int:
        """Submits the runs and waits for them; returns the exit status."""
        from launch.submit import submit_and_watch  # here: Hydra imports this module at every start

        gc.enable()  # train.py disables it until a run has loaded, and none does here
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it says how the jobs go on
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return submit_and_watch(self._overrides)


class InProcessLauncher(_SweepLauncher):
    """The runs one after the other in this process; one that fails does not end the others."""

    def _make(self) -> int:
        from zo.config import command_line
        from zo.run.multirun import Multirun

        runs = command_line.runs(self._overrides, multirun=True)
        for cfg in runs:
            cfg.tracking.group = cfg.tracking.group or self._sweep
        return Multirun.of(runs).run()


class SlurmLauncher(_SweepLauncher):
    """Jobs on a SLURM cluster, which go on if this process ends."""


class LocalLauncher(_SweepLauncher):
    """Several processes on this machine, which end with this one."""
