"""What an interrupted run left behind: as far as its files agree, and no further."""

import random

import pytest

from tests.support.damage import flip_bit, truncate
from zo.config import TrackingConfig
from zo.run import history, trajectory
from zo.run.tracking import RunLog, read_rows
from zo.run.trajectory import Best, Header, TrajectoryWriter

RUN_ID = "mezo-0123456789ab"
HASH = "xxh3_128:" + "0f" * 16
STEPS, EVAL_EVERY = 6, 2


def row(step: int) -> dict:
    made = {"step": step, "train/loss": 1 / step}
    if step % EVAL_EVERY == 0:
        made["eval/val_accuracy"] = 0.5
    if step == 2:
        made |= {"eval/test_accuracy": 0.25, "best/weights": HASH}
    return made


@pytest.fixture
def left(tmp_path, make_run):
    """A directory with six steps, of which the second is the best, and the run's configuration."""
    log = RunLog(
        tmp_path,
        run_id=RUN_ID,
        name="mezo",
        config={},
        tracking=TrackingConfig(mode="disabled"),
    )
    header = Header(RUN_ID, {}, HASH, 23, "torch-cpu", 2, {})
    frames = TrajectoryWriter(tmp_path / trajectory.NAME, header)
    for step in range(1, STEPS + 1):
        frames.append((1 / step, 2 / step))
        if step == 2:
            frames.append_best(Best(0.5, 0.25, HASH))
        log.write(step, {k: v for k, v in row(step).items() if k != "step"})
    log.abandon()
    return tmp_path, make_run("optimizer=mezo", f"steps={STEPS}", f"eval_every={EVAL_EVERY}")


def known(left, replays=True):
    directory, cfg = left
    return history.read(directory, cfg, RUN_ID, replays)


def test_all_that_was_made_is_known(left, capsys):
    found = known(left)
    assert found.rows == [row(step) for step in range(1, STEPS + 1)]
    assert found.trajectory.losses[2] == (1 / 3, 2 / 3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("how", [flip_bit, truncate])
@pytest.mark.parametrize("name", ["metrics.jsonl", "trajectory.bin"])
def test_after_any_damage_what_is_known_is_true(left, name, how):
    directory, _ = left
    whole = (directory / name).read_bytes()
    for seed in range(60):
        how(directory / name, random.Random(seed))
        found = known(left)
        assert found.rows == [row(step) for step in range(1, found.step + 1)], seed
        if found.step:
            assert len(found.trajectory.losses) >= found.step
            assert (found.step < 2) or found.trajectory.bests == {2: Best(0.5, 0.25, HASH)}
        (directory / name).write_bytes(whole)
    assert known(left).step == STEPS


def test_a_step_whose_best_the_trajectory_lacks_is_made_again(left, capsys):
    """The record of a best is damaged, the step's own is not."""
    directory, _ = left
    path = directory / trajectory.NAME
    data = bytearray(path.read_bytes())
    data[data.index(b"B", trajectory.Trajectory(path).ends[1]) + 3] ^= 1
    path.write_bytes(data)
    assert known(left).step == 1
    assert f"{path}: not whole after step 2" in capsys.readouterr().err


def test_a_row_without_its_evaluation_is_made_again(left):
    _, cfg = left
    cfg.eval_every = 3
    assert known(left).step == 2


@pytest.mark.parametrize("change", ["missing", "of another run", "torn header"])
def test_without_a_usable_trajectory_the_run_starts_over(left, change, capsys):
    directory, _ = left
    path = directory / trajectory.NAME
    if change == "missing":
        path.unlink()
    elif change == "of another run":
        header = Header("bszo-0123456789ab", {}, HASH, 23, "torch-cpu", 2, {})
        path.write_bytes(header.encode())
    else:
        truncate_to(path, 20)
    assert known(left).step == 0
    said = capsys.readouterr().err
    assert said.startswith(f"{path}: ")
    assert said.endswith("; the run starts at step 0\n")


def truncate_to(path, size):
    path.write_bytes(path.read_bytes()[:size])


def test_a_method_that_is_not_replayed_needs_no_trajectory(left):
    directory, _ = left
    (directory / trajectory.NAME).unlink()
    found = known(left, replays=False)
    assert (found.step, found.trajectory) == (STEPS, None)


def test_a_log_goes_on_behind_the_rows_that_stay(left):
    directory, _ = left
    log = RunLog(
        directory,
        read_rows(directory)[:3],
        run_id=RUN_ID,
        name="mezo",
        config={},
        tracking=TrackingConfig(mode="disabled"),
    )
    log.write(4, {"train/loss": 9.0})
    log.abandon()
    assert [r["train/loss"] for r in read_rows(directory)] == [1, 1 / 2, 1 / 3, 9.0]
