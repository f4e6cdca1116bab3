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
    """Brings θ and the optimizer from step 0 to where they were after a step.

    Args:
        assembly: At step 0.
        trajectory: Of the run.
        step: 0 to the trajectory's last step.
        run: The run's directory, whose checkpoints shorten the way.
        made: Called with the number of each step reached; may raise to stop.

    Returns:
        The step from which steps were replayed: that of a checkpoint, or 0.

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
