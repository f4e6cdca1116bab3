"""The launchers behind `hydra/launcher=basic`, `slurm` and `local`; Hydra looks for them in packages of this name."""

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from launch import profile
from zo.config.lines import LINES
from zo.run import signals

if TYPE_CHECKING:
    from launch.sweep import Sweep

profile.register()
ConfigStore.instance().store(  # instead of Hydra's own, which ends at the first run that fails
    group="hydra/launcher",
    name="basic",
    node={"_target_": "hydra_plugins.zo_launchers.InProcessLauncher"},
    provider="zo",
)
ConfigStore.instance().store(  # Hydra's own, which takes no keys of ours beside its `params`
    group="hydra/sweeper",
    name="basic",
    node={
        "_target_": "hydra_plugins.zo_launchers.LineSweeper",
        **dict.fromkeys(("max_batch_size", "params", *LINES)),
    },
    provider="zo",
)


class LineSweeper(BasicSweeper):
    """Hydra's own sweeper: the launchers compose the lines (`zo.config.lines`)."""

    def __init__(self, max_batch_size: int | None, params: Any, **_: Any):
        super().__init__(max_batch_size, params)

    def sweep(self, arguments: list[str]) -> Any:
        """Leaves everything to the launcher; Hydra would compose every run to check it."""
        assert self.launcher is not None  # after setup
        return self.launcher.launch([], 0)


class _SweepLauncher(Launcher):
    """Makes a whole sweep at once: the overrides are composed again, faster than Hydra composes each run."""

    def __init__(self, **_: Any):
        self._overrides: list[str] = []

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keeps what was typed."""
        given: Any = OmegaConf.to_container(config.hydra.overrides)  # ${...} stays as typed
        self._overrides = [*given["task"], *given["hydra"]]

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Makes the runs, shows how they go, and ends the process: with 0 if all of them finished.

        Raises:
            SystemExit: Always.
        """
        GlobalHydra.instance().clear()  # what follows composes on its own
        from launch.sweep import Sweep  # here: Hydra imports this module at every start

        sweep = Sweep.of(self._overrides)
        if not sweep.runs:
            print(f"{sweep.name}: all of its {sweep.cells} runs are recorded")
        signals.leave(self._make(sweep) if sweep.runs else 0)

    def _make(self, sweep: "Sweep") -> int:
        """Submits the runs and waits for them; returns the exit status."""
        from launch.submit import submit_and_watch

        signal.signal(signal.SIGINT, signal.default_int_handler)  # it says how the jobs go on
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return submit_and_watch(self._overrides)


class InProcessLauncher(_SweepLauncher):
    """The runs one after the other in this process; one that fails does not end the others."""

    def _make(self, sweep: "Sweep") -> int:
        from launch.status import hours_left
        from launch.sweep import TYPED, standings
        from zo.run.multirun import Multirun, note

        runs = [run.cfg for run in sweep.runs]
        if sweep.name == TYPED and len(runs) > 1:
            note(runs)
        print(hours_left(sweep, standings(sweep.runs, ask_queue=False)), flush=True)
        return Multirun.of(runs).run()


class SlurmLauncher(_SweepLauncher):
    """Jobs on a SLURM cluster, which go on if this process ends."""


class LocalLauncher(_SweepLauncher):
    """Several processes on this machine, which end with this one."""
