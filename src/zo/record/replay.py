"""Replay of a trajectory's steps, without a forward pass: for `zo.replay`, and for runs."""

import warnings
from collections.abc import Callable

import torch

from zo.optim.base import Rates, StepInfo, ZOOptimizer
from zo.record.header import digest_of
from zo.record.trajectory import Trajectory, TrajectoryError


def check_fit(found: Trajectory, base: str, noise: str, whose: str = "these") -> None:
    """Checks that a trajectory starts from these weights and draws this noise.

    Args:
        found: The trajectory.
        base: Hash of the weights here.
        noise: The noise engine here.
        whose: What the weights here are called.

    Raises:
        TrajectoryError: If its losses lead elsewhere from here.
    """
    if found.header.base != base:
        raise TrajectoryError(
            f"{found.path}: it starts from other weights than {whose} ({found.header.base}, not {base})"
        )
    check_noise(found, noise)


def check_noise(found: Trajectory, noise: str) -> None:
    """Raises TrajectoryError if a trajectory draws other noise."""
    if found.header.noise != noise:
        raise TrajectoryError(
            f"{found.path}: its noise is {found.header.noise}, and here it is {noise}; it has to be made with the"
            " noise and on the kind of device that it was made with"
        )


def replay_steps(
    found: Trajectory,
    method: ZOOptimizer,
    to: int,
    weights_hash: Callable[[], str] | None = None,
    made: Callable[[int], None] = lambda step: None,
) -> StepInfo | None:
    """Makes the steps that a method lacks.

    Args:
        found: The trajectory.
        method: Makes the steps, from its own step index on.
        to: The last step.
        weights_hash: Returns the hash of the weights, as in a run's bests; None compares digests of a record alone.
        made: Called with the number of each step reached, also of the one that is there; may raise to stop.

    Returns:
        The last step's result; None without a step.

    Raises:
        TrajectoryError: If the weights are not those of which the file has a hash.
    """
    info, compared = None, False
    best = None if weights_hash is None else found.best_until(to)
    with torch.no_grad():
        for step in range(method.step_index, to + 1):
            if step > method.step_index:
                info = _replay_step(found, method)
            made(step)
            expected = found.digests.get(step) if info is not None else None
            compared |= expected is not None
            same = expected is None or digest_of(method) == expected
            if step == best and weights_hash is not None:
                same = weights_hash() == found.bests[step].weights
            if not same:
                raise TrajectoryError(
                    f"{found.path}: step {step} made again gives other weights than the run had; {_versions(found)}."
                    " Other causes are another processor or library, and weights that something else changed between"
                    " two steps"
                )
    if (
        info is not None
        and not compared
        and found.header.groups
        and _torch_of(found) != torch.__version__
    ):
        warnings.warn(
            f"{found.path}: {_versions(found)}; the record has no digest that shows whether the weights are the same",
            stacklevel=3,
        )
    return info


def _replay_step(found: Trajectory, method: ZOOptimizer) -> StepInfo:
    """Makes the next step, with its rates, and merges the factors before it as the training did."""
    step, policy = method.step_index, method.params.policy
    if step in found.merges:
        policy.merge_factors()
    if found.header.groups:  # of a record; rates of a run never change
        rates = found.rates[step]
        method.rates = [Rates(*rates[i : i + 2]) for i in range(0, len(rates), 2)]
    return method.replay(found.losses[step])


def _torch_of(found: Trajectory) -> str | None:
    return found.header.written_by.get("torch")


def _versions(found: Trajectory) -> str:
    """Returns a sentence with the torch versions of a trajectory and of this process."""
    return f"it was recorded with torch {_torch_of(found)}, and this is torch {torch.__version__}"
