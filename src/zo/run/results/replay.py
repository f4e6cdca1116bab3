"""The weights of any step: the nearest checkpoint before it, and from there the trajectory's steps made again."""

from collections.abc import Callable
from pathlib import Path

from zo.config import method_code
from zo.record.replay import check_fit, replay_steps
from zo.record.trajectory import Trajectory, TrajectoryError
from zo.run.assembly import Assembly
from zo.run.store import checkpoint


def replay_to(
    assembly: Assembly,
    trajectory: Trajectory,
    step: int,
    run: Path | None = None,
    made: Callable[[int], None] = lambda step: None,
) -> int:
    """Brings θ and the optimizer from step 0 to after a step; returns the step of the checkpoint used, or 0.

    Checkpoints in the directory `run` shorten the way. `made` is told each step reached, and may raise to stop.

    Raises:
        TrajectoryError: If base weights, noise backend or method are not the trajectory's, or give other weights.
    """
    header, here = trajectory.header, assembly.params.engine.backend
    name = header.config["optimizer"]["name"]
    code = method_code.of_method(name) or method_code.COMMITTED
    if (was := header.written_by.get("method", code)) != code:
        raise TrajectoryError(
            f"{trajectory.path}: the code of optimizer={name} is not the one that it was made with ({code}, not {was});"
            " put the old code back"
        )
    check_fit(trajectory, assembly.base, here, f"{header.config['model']['name']} has here")
    start = 0
    if run is not None:
        start = checkpoint.load_newest(run, assembly.optimizer, step)
    replay_steps(trajectory, assembly.optimizer, step, assembly.weights_hash, made)
    return start
