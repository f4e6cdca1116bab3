"""Trajectories: the bytes that are documented, any damage found, and any step's weights bit for bit."""

import itertools
import json
import struct
import zlib
from pathlib import Path

import pytest
import torch

from zo import trajectory as command
from zo.optim import OPTIMIZERS
from zo.optim.config import ZerothOrderConfig
from zo.run import loop
from zo.run.assembly import Assembly
from zo.run.replay import replay_to
from zo.run.rows import trajectory_of
from zo.run.runner import run
from zo.run.trajectory import Best, Header, Trajectory, TrajectoryError

ZEROTH_ORDER = [n for n, m in OPTIMIZERS.items() if issubclass(m.config, ZerothOrderConfig)]
HASH = "xxh3_128:000102030405060708090a0b0c0d0e0f"
CONFIG = {
    "model": {"name": "tiny", "path": "a/tiny"},
    "task": {"name": "cb"},
    "optimizer": {"name": "mezo", "eps": 1e-3},
    "precision": {"name": "fp32", "dtype": "float32", "restore": "subtract"},
    "lr": 1e-6,
    "seed": 7,
    "steps": 20_000,
}
HEADER = Header("mezo-0123456789ab", CONFIG, HASH, 23, "torch-cpu", 2, {"torch": "2"})
LOSSES = [(0.5, 0.25), (-0.0, 1e-300), (1 / 3, 2.5), (0.1, 0.2)]
BESTS = {1: Best(0.5, 0.75, HASH), 3: Best(0.625, 0.5, HASH)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    return Trajectory(tmp_path_factory.mktemp("whole") / "t.bin", HEADER, LOSSES, BESTS).encode()


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


def test_the_bytes_are_those_that_the_module_documents(whole):
    text = whole[12 : 12 + struct.unpack_from("<I", whole, 8)[0]]
    start = b"ZOTRAJ" + struct.pack("<HI", 1, len(text)) + text
    expected = start + struct.pack("<I", zlib.crc32(start))
    for step, losses in enumerate(LOSSES, start=1):
        frames = [b"S" + struct.pack("<2d", *losses)]
        if step in BESTS:
            best = BESTS[step]
            accuracies = struct.pack("<2d", best.val_accuracy, best.test_accuracy)
            frames.append(b"B" + accuracies + bytes(range(16)))
        for frame in frames:
            expected += frame + struct.pack("<I", zlib.crc32(struct.pack("<I", step) + frame))
    assert whole == expected
    assert json.loads(text) == {
        "run_id": "mezo-0123456789ab",
        "config": CONFIG,
        "base": HASH,
        "parameters": 23,
        "noise": "torch-cpu",
        "losses_per_step": 2,
        "written_by": {"torch": "2"},
    }


def test_what_is_written_is_read_and_any_damage_is_found(tmp_path, whole):
    """Every truncation and flipped bit: what is not torn is whole steps."""
    file, ends = tmp_path / "t.bin", 0
    for size in range(len(whole)):
        found = read(file, whole[:size])
        ends += found is not None and not found.torn
    assert ends == len(LOSSES) + len(BESTS), "the header's end, and each frame's but the last"
    for bit in range(0, 8 * len(whole), 3):
        altered = bytearray(whole)
        altered[bit // 8] ^= 1 << bit % 8
        found = read(file, bytes(altered))
        assert found is None or found.torn
    found = read(file, whole)
    assert (found.losses, found.bests, found.torn) == (LOSSES, BESTS, False)
    assert str(found.losses[1][0]) == "-0.0"
    assert [found.best_until(step) for step in range(5)] == [None, 1, 1, 3, 3]


PRECISIONS = list(itertools.product(("fp32", "bf16"), ("subtract", "snapshot", "merged")))
ALLOWED = {"sparse_mezo": ("bf16", "streamed")}
STATE_SOON = {
    "adamezo": ("optimizer.window=2",),
    "conmezo": ("optimizer.hold=1", "optimizer.ramp=3"),
    "zo_muon": ("optimizer.interval=3", "optimizer.rank=4"),
    **dict.fromkeys(("lozo", "lozo_m", "subzero", "tezo"), ("optimizer.interval=3",)),
}
"""So that state and subspaces change within six steps, on both sides of the kill."""
ROTATED = [
    pytest.param(
        name,
        ALLOWED.get(name, precision),
        marks=[] if name == "bszo" else pytest.mark.process,
    )
    for name, precision in zip(ZEROTH_ORDER, itertools.cycle(PRECISIONS[::-1]), strict=False)
]
STREAMED = [
    pytest.param("lozo", ("bf16", "streamed"), marks=pytest.mark.process),
    ("lozo", ("bf16", "factors")),
]


class Killed(Exception):
    """What ends a run between two steps."""


def replays_to_the_weights_that_were(make_run, monkeypatch, optimizer, precision, *more):
    """Makes a run that ends after four steps and goes on; replays it without a break."""
    hashes = {}
    made = loop._step

    def noting(session, examples):
        if 4 in hashes and 5 not in hashes and not resumed:
            raise Killed
        metrics = made(session, examples)
        hashes[session.assembly.optimizer.step_index] = session.assembly.weights_hash()
        return metrics

    resumed = False

    dtype, restore = precision
    cfg = make_run(
        *(f"optimizer={optimizer}", f"precision={dtype}", f"precision.restore={restore}"),
        *("steps=6", "checkpoint.full_every=3", *more),
    )
    with monkeypatch.context() as watched:
        watched.setattr(loop, "_step", noting)
        with pytest.raises(Killed):
            run(cfg)
        resumed = True
        summary = run(cfg)
    (directory,) = Path(cfg.out).iterdir()
    found = trajectory_of(directory)
    assembly = Assembly.of(cfg)
    reached = {}
    replay_to(assembly, found, 6, made=lambda step: reached.update({step: assembly.weights_hash()}))
    assert reached == {0: found.header.base, **hashes}
    assert len(set(reached.values())) == 7, "every step moves θ"
    assert found.bests[summary["best/step"]].weights == hashes[summary["best/step"]]
    return cfg, found, hashes


@pytest.mark.parametrize(("optimizer", "precision"), [*ROTATED, *STREAMED])
def test_a_replay_has_the_weights_of_every_step(make_run, monkeypatch, optimizer, precision):
    more = STATE_SOON.get(optimizer, ())
    replays_to_the_weights_that_were(make_run, monkeypatch, optimizer, precision, *more)


@pytest.mark.parametrize(
    ("optimizer", "restore", "rounding"),
    [
        ("hizoo", "merged", "stochastic"),
        pytest.param("bszo", "snapshot", "compensated", marks=pytest.mark.process),
    ],
)
def test_a_replay_draws_and_rounds_as_the_run_did(
    make_run, monkeypatch, optimizer, restore, rounding
):
    more = ("precision.noise=philox", f"precision.rounding={rounding}")
    replays_to_the_weights_that_were(make_run, monkeypatch, optimizer, ("bf16", restore), *more)


@pytest.fixture
def made(finished):
    (directory,) = Path(finished.out).iterdir()
    return finished, directory, trajectory_of(directory)


def test_what_cannot_be_replayed_is_refused_in_a_sentence(made):
    """Other weights, other noise, and losses that lead elsewhere, as on a processor that rounds otherwise."""
    cfg, _, found = made
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


def test_replay_writes_a_model_that_transformers_loads(made, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    cfg, directory, found = made
    shared = tmp_path / "shared.bin"
    (directory / "trajectory.bin").rename(shared)  # without the run's directory
    assert command.main(["replay", str(shared), "--to", "2", "--out", str(tmp_path / "w")]) == 0
    assembly = Assembly.of(cfg)
    replay_to(assembly, found, 2)
    assert assembly.weights_hash() in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "w")
    assert AutoTokenizer.from_pretrained(tmp_path / "w")("a film").input_ids
    loaded = dict(model.named_parameters())
    for name, tensor in zip(assembly.params.names, assembly.params.tensors, strict=True):
        assert torch.equal(loaded[name], tensor)


def test_a_step_that_is_not_there_is_refused_in_a_sentence(made, tmp_path, capsys):
    out = tmp_path / "w"
    for to, why in (("5", "step 5 is beyond its last one, 4"), ("first", "'first' is no step")):
        assert command.main(["replay", str(made[1]), f"--to={to}", f"--out={out}"]) == 2
        said = capsys.readouterr().err
        assert why in said
        assert len(said.splitlines()) == 1
    assert not out.exists()
