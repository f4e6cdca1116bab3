"""Trajectories: the bytes that are documented, any damage found, and any step's weights bit for bit."""

import hashlib
from pathlib import Path

import pytest

from zo import trajectory as command
from zo.record.trajectory import Best, Header, Trajectory, TrajectoryError
from zo.run.assembly import Assembly
from zo.run.results.replay import replay_to
from zo.run.store.directory import directory_of
from zo.run.store.rows import trajectory_of

HASH = "xxh3_128:000102030405060708090a0b0c0d0e0f"
HEADER = Header("mezo-0123456789ab", {"lr": 1e-6}, HASH, 23, "torch-cpu", 2, {"torch": "2"})
LOSSES = [(0.5, 0.25), (-0.0, 1e-300), (1 / 3, 2.5), (0.1, 0.2)]
BESTS = {1: Best(0.5, 0.75, HASH), 3: Best(0.625, 0.5, HASH)}


DIGEST = "43bb9fc8a70c2f8e08bba5a6d5da1ac7d2ffcdc24fe5f3ed189a5755a94a8c3f"
WHOLE = Trajectory(Path("t.bin"), HEADER, LOSSES, BESTS).encode()


def read(path: Path, data: bytes) -> Trajectory | None:
    """What is read of data; nothing of it is wrong."""
    path.write_bytes(data)
    try:
        found = Trajectory.read(path)
    except TrajectoryError:
        return None
    assert found.header == HEADER
    assert found.losses == LOSSES[: len(found.losses)]
    assert found.bests.items() <= BESTS.items()
    return found


def test_the_format_stays_what_earlier_files_have():
    """Another digest makes every file unreadable that was shared: raise VERSION then."""
    assert hashlib.sha256(WHOLE).hexdigest() == DIGEST


def test_what_is_written_is_read_and_any_damage_is_found(tmp_path):
    """Every truncation and flipped bit: what is not torn is whole steps."""
    file, ends = tmp_path / "t.bin", 0
    for size in range(len(WHOLE)):
        found = read(file, WHOLE[:size])
        ends += found is not None and not found.torn
    assert ends == len(LOSSES) + len(BESTS), "the header's end, and each frame's but the last"
    for bit in range(0, 8 * len(WHOLE), 11):
        altered = bytearray(WHOLE)
        altered[bit // 8] ^= 1 << bit % 8
        found = read(file, bytes(altered))
        assert found is None or found.torn
    found = read(file, WHOLE)
    assert (found.losses, found.bests, found.torn) == (LOSSES, BESTS, False)
    assert str(found.losses[1][0]) == "-0.0"
    assert [found.best_until(step) for step in range(5)] == [None, 1, 1, 3, 3]


def test_what_cannot_be_replayed_is_refused_in_a_sentence(finished):
    """Other weights, other noise, and losses that lead elsewhere, as on a processor that rounds otherwise."""
    cfg, found = finished, trajectory_of(directory_of(finished))
    assembly = Assembly.of(cfg)
    assembly.base = HASH
    with pytest.raises(TrajectoryError, match="it starts from other weights than reviews-tiny has"):
        replay_to(assembly, found, 3)
    cfg.precision.noise = "philox"
    with pytest.raises(TrajectoryError, match="its noise is torch-cpu, and here it is philox-cpu"):
        replay_to(Assembly.of(cfg), found, 1)
    cfg.precision.noise = "torch"
    found.losses[0] = (found.losses[0][0], found.losses[0][1] + 1e-6)
    with pytest.raises(TrajectoryError, match="gives other weights than the run had"):
        replay_to(Assembly.of(cfg), found, 3)


def test_replay_writes_a_model_that_transformers_loads(finished, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory, assembly = directory_of(finished), Assembly.of(finished)
    shared, out = tmp_path / "shared.bin", tmp_path / "w"
    replay_to(assembly, trajectory_of(directory), 2)
    (directory / "trajectory.bin").rename(shared)  # without the run's directory
    assert command.main(["replay", str(shared), "--to", "2", "--out", str(out)]) == 0
    assert assembly.weights_hash() in capsys.readouterr().out
    AutoModelForCausalLM.from_pretrained(out)
    assert AutoTokenizer.from_pretrained(out)("a film").input_ids
