"""Trajectories: the bytes that are documented, any damage found, and any step's weights bit for bit."""

import hashlib
import shutil
from pathlib import Path

import pytest
import torch

import zo
from zo import trajectory as command
from zo.extras import Trust
from zo.optim import OPTIMIZERS, from_file
from zo.record.trajectory import Best, Header, Trajectory, TrajectoryError
from zo.run.assembly import Assembly
from zo.run.results.replay import replay_to
from zo.run.runner import run
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
    with pytest.raises(TrajectoryError, match="reviews-tiny"):
        replay_to(assembly, found, 3)
    cfg.precision.noise = "philox"
    with pytest.raises(TrajectoryError, match=r"torch-cpu.*philox-cpu"):
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


OWN = """
from dataclasses import dataclass
from zo.optim.config_spsa import MeZOConfig
from zo.optim.mezo import MeZO

@dataclass(kw_only=True)
class Settings(MeZOConfig):
    pass

class MeZOShared(MeZO):
    config: Settings
"""


@pytest.fixture
def own_method(own_conf, tmp_path, monkeypatch):
    """Returns a method's file, and a function by which this process forgets that it ran."""
    file = tmp_path / "code" / "own.py"
    file.parent.mkdir()
    file.write_text(OWN)

    def forget():
        OPTIMIZERS.pop("MeZOShared", None)
        monkeypatch.setattr(from_file, "_read", {})
        monkeypatch.setattr(Trust, "given", False)

    yield f"{file}:MeZOShared", forget
    forget()


def test_a_method_in_a_file_is_replayed_by_its_file_alone(
    own_method, make_run, tmp_path, refused, capsys
):
    address, forget = own_method
    cfg = make_run(f"optimizer={address}")
    run(cfg)
    directory, out = directory_of(cfg), tmp_path / "w"
    shared = shutil.copy(directory / "trajectory.bin", tmp_path / "shared.bin")
    for of, says in (
        (
            shared,
            f"{shared}: made by MeZOShared, which is no method of zo; --method my_method.py:MeZOShared",
        ),
        (
            directory,
            f"{directory}: optimizer={address}: is code that a run's directory names; read it, and add --trust",
        ),
    ):
        forget()
        said = refused(command.main, "replay", of, "--to", "last", "--out", out)
        assert said.startswith(says)
        assert "remove" not in said
        assert (
            command.main(
                ["replay", str(of), "--to", "last", "--out", str(out), "--method", address]
            )
            == 0
        )
        shutil.rmtree(out)
    assert len({line.split()[-1] for line in capsys.readouterr().out.splitlines()}) == 1, "one hash"
    other = Path(address.partition(":")[0])
    other.write_text(OWN.replace("MeZOShared", "MeZOOther"))
    given = ("--method", f"{other}:MeZOOther")
    assert refused(command.main, "replay", shared, "--to", "1", "--out", out, *given).endswith(
        "was made by MeZOShared, not by MeZOOther"
    )
    OPTIMIZERS.pop("MeZOOther")


def test_a_record_of_the_library_says_how_it_is_replayed(tmp_path, refused):
    model, file = torch.nn.Linear(3, 2), tmp_path / "run.zo"
    for params, words in (
        (
            model,
            f"`zo.replay(model, '{file}')` makes its weights, where model is the one that was trained",
        ),
        (
            [{"params": [model.weight]}, {"params": [model.bias], "lr": 1.0}],
            f"`zo.replay(groups, '{file}')` makes its weights, where groups are the optimizer's, of 1 and 1 tensors",
        ),
    ):
        with zo.MeZO(params, lr=1e-3, record=file) as optimizer:
            optimizer.step(lambda: model(torch.ones(3)).sum())
        assert words in refused(command.main, "replay", file, "--to", "1", "--out", tmp_path / "w")
        file.unlink()
