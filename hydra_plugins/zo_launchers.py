"""The launchers behind `hydra/launcher=slurm` and `local`; Hydra looks for launchers in packages of this name."""

from collections.abc import Sequence
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from launch import profile

profile.register()


class _SweepLauncher(Launcher):
    """Hands a whole sweep to `launch.submit`, which checks, freezes and submits its runs, and waits for them."""

    def __init__(self, **_: Any):
        self._overrides: list[str] = []

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keeps what was typed."""
        given = config.hydra.overrides
        self._overrides = [str(override) for override in [*given.task, *given.hydra]]

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Submits the runs, shows how they go, and ends the process: with 0 if all of them finished.

        Raises:
            SystemExit: Always.
        """
        from launch.submit import submit_and_watch  # here: Hydra imports this module at every start

        GlobalHydra.instance().clear()  # what follows composes on its own
        raise SystemExit(submit_and_watch(self._overrides))


class SlurmLauncher(_SweepLauncher):
    """Jobs on a SLURM cluster, which go on if this process ends."""


class LocalLauncher(_SweepLauncher):
    """Several processes on this machine, which end with this one."""
