"""Records: damage, steps back, full disks and other weights are noticed; earlier files replay."""

import base64
import copy
import gc
import math
import os
import random
import zlib
from dataclasses import asdict

import pytest
import torch
from torch import nn

import zo
from tests.support.own_loop import loss_of, make, make_model, weights
from tests.support.quadratic import same
from zo.record.appender import Appender
from zo.record.recorder import read_record
from zo.record.trajectory import TrajectoryError

VERSION_1 = """
eNplUE9LIzEUHz17XNjrkKttmc601umCjggKoijqaUVmMzOv07BtMiQZ2loKy+In8OBnUAS9eNir30A8etL9AktZ2MvuYfPS4sUckrzfn5f3y+f948ONnQXn
x4LjjElCFZC2S5Ie/Qp+0m42GxAGQaMZZkELWnXIAFbDVhp6XuKvNDJScUkqeIflxjUmGaR0pMz1RMsSKi7up0aSMQmpZoIjR3JaKsUoRzMUCHk1z6ubKpei
tMCJV3Hr6OSmQIbTvh2sD2cCfVyw2aRFl/XEcAbJfpyAprZhGBpIgtJCzo0yBzuveYNnjOPEhANFDcIKDN12A7xqKGJsZyWCA/J6IGLFMiuapSMDYHlXxzb1
LMXEoD2hFKi4ABljI0P47weupkWJXQsqTTINElM3UChLHjN8hCA/kExr4HEysh9s0qRd5PxaPah5y9hlMvnzc+l+d/zhdvv17Hzdma9/19OnveTgrV4s116O
zPnlr7Md4Xk53Yo2P958QjD6NQws2DkPourd9wcEncdpFcFv+XM1+u1fXfwHPUSnmw==
"""
"""Three steps of MeZO on philox noise, two groups, written before records had digests."""


def trained(file, steps, **kwargs):
    model = make_model()
    optimizer = make("mezo", model, record=file, **kwargs)
    for _ in range(steps):
        optimizer.step(lambda: loss_of(model))
    return model, optimizer


def replayed(file, **kwargs):
    model = make_model()
    zo.replay(model, file, **kwargs)
    return weights(model)


def test_any_flipped_bit_and_any_cut_within_a_step_is_refused(file):
    numbers = random.Random(0)
    trained(file, 12)
    data, ends = file.read_bytes(), set()
    for _ in range(20):
        at = numbers.randrange(len(data))
        file.write_bytes(data[:at] + bytes([data[at] ^ 1 << numbers.randrange(8)]) + data[at + 1 :])
        with pytest.raises(TrajectoryError):
            replayed(file)
    for length in range(len(data) - 60, len(data), 3):
        file.write_bytes(data[:length])
        if read_record(file).torn:
            with pytest.raises(TrajectoryError, match="altered"):
                replayed(file)
        else:
            ends.add(length)
    assert len(ends) <= 3  # between two steps nothing tells a cut from a training's end
    file.write_bytes(data[:-1])
    assert len(replayed(file, steps=11)) == 6


def test_a_step_back_in_the_same_training_cuts_the_abandoned_steps(file):
    model, optimizer = trained(file, 3)
    saved = copy.deepcopy((optimizer.state_dict(), model.state_dict()))
    for _ in range(4):
        optimizer.step(lambda: loss_of(model))
    optimizer.load_state_dict(saved[0])
    model.load_state_dict(saved[1])
    for _ in range(5):
        optimizer.step(lambda: loss_of(model) * 2)
    assert same(replayed(file), weights(model))


def test_a_state_that_is_loaded_without_its_weights_is_noticed(file):
    model, optimizer = trained(file, 4)
    saved = optimizer.state_dict()
    optimizer.step(lambda: loss_of(model))
    optimizer.load_state_dict(saved)
    with pytest.raises(TrajectoryError, match="step 4"):
        optimizer.step(lambda: loss_of(model))


def test_a_step_that_the_disk_did_not_take_is_written_with_the_next_one(file, monkeypatch):
    model, optimizer = trained(file, 2)
    write = os.write

    def full(fd, data):
        if not os.path.samestat(os.fstat(fd), file.stat()):  # another thread's
            return write(fd, data)
        write(fd, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        optimizer.step(lambda: loss_of(model))
    assert len(replayed(file, steps=2)) == len(weights(model))
    monkeypatch.undo()
    optimizer.step(lambda: loss_of(model))
    assert same(replayed(file), weights(model))


@pytest.mark.parametrize("closed", [False, True])
def test_weights_that_something_else_changed_are_noticed(closed, file):
    model, optimizer = trained(file, 2)
    with torch.no_grad():
        model[0].weight[0, 0] += 1e-3
    for _ in range(1 if closed else 2):
        optimizer.step(lambda: loss_of(model))
    if closed:
        optimizer.close()
    with pytest.raises(TrajectoryError, match=r"step [34] made again"):
        replayed(file)
    replayed(file, steps=2)


def test_groups_under_streamed_replay_with_their_model(file):
    def groups(model):
        return [{"params": list(model[0].parameters())}, {"params": list(model[3].parameters())}]

    model, again = make_model(), make_model()
    how = {"model": model, "restore": "streamed", "record": file}
    optimizer = zo.MeZO(groups(model), lr=1e-2, **how)
    optimizer.step(lambda: loss_of(model))
    zo.replay(groups(again), file, model=again)
    assert same(weights(again), weights(model))


def test_a_file_is_closed_with_what_writes_it(tmp_path):
    gc.collect()  # of earlier tests, which may close files
    before = os.listdir("/proc/self/fd")
    appender = Appender(tmp_path / "file")
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    del appender
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_record_without_digests_replays_and_says_if_torch_is_another(file, monkeypatch):
    file.write_bytes(zlib.decompress(base64.b64decode(VERSION_1)))

    def fresh():
        shapes = (2, 20), (2,)
        made = [torch.linspace(-1, 1, math.prod(shape)).view(shape) for shape in shapes]
        return [{"params": [nn.Parameter(p)]} for p in made]

    groups = fresh()
    zo.replay(groups, file)
    assert groups[1]["params"][0].tolist() == [-0.9427778124809265, 0.9379702210426331]
    monkeypatch.setattr(torch, "__version__", "9.9")
    with pytest.warns(UserWarning, match=r"torch 9\.9"):
        zo.replay(fresh(), file)


def test_a_record_is_not_continued_or_replayed_under_other_noise(file, monkeypatch):
    _, optimizer = trained(file, 2)
    state = optimizer.state_dict()
    monkeypatch.setattr(optimizer.method.params.engine, "backend", "philox-cuda")
    optimizer.load_state_dict(state)
    says = "its noise is philox-cpu, and here it is philox-cuda"
    for attempt in (lambda: optimizer.step(lambda: 1.0), lambda: replayed(file)):
        with pytest.raises(TrajectoryError, match=says):
            attempt()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("name", "newer", "made by newer, which is no method here; there are mezo, "),
        ("later", 1, "made with later, which mezo does not have here"),
    ],
)
def test_a_record_of_another_version_is_refused(file, monkeypatch, key, value, says):
    monkeypatch.setattr("zo.record.header.asdict", lambda of: {**asdict(of), key: value})
    trained(file, 1)
    with pytest.raises(TrajectoryError, match=says):
        replayed(file)
