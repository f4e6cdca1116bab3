"""Noise of either kind is a function of its key alone, fair and independent."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import zo
from zo.noise import NOISES, NoiseKey, engine, is_compiled, philox

KEY = NoiseKey(seed=7, stream=0, step=3, direction=1)


@pytest.mark.parametrize(
    "other",
    [
        (KEY._replace(seed=8), 0),
        (KEY._replace(seed=7 + 2**32), 0),
        (KEY._replace(stream=1), 0),
        (KEY._replace(step=4), 0),
        (KEY._replace(direction=2), 0),
        (KEY, 1),
        (NoiseKey(KEY.stream, KEY.seed, KEY.step, KEY.direction), 0),
        (NoiseKey(KEY.seed, KEY.stream, KEY.direction, KEY.step), 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("signs", [False, True])
def test_each_part_of_the_key_counts_and_values_are_fair_and_independent(other, noise, signs):
    """Means, and products of neighbours and of other keys' values, are 0 within five standard errors."""
    n, draw = 100_000, engine(noise).draw_
    a, b = (draw(torch.empty(n), *key, signs).double().numpy() for key in ((KEY, 0), other))
    assert not signs or (a * a == 1).all()
    for lag in (0, 1, 2, 31, 32, 127, 128):
        for x, y in ((a[lag:], b), (b[lag:], a), (a[lag:], a if lag else np.ones(n))):
            assert abs(np.mean(x * y[: len(x)])) < 5 / np.sqrt(n)


def test_a_sign_is_a_bit_of_the_word_that_is_documented():
    first = philox.words(KEY, 5, 0, 8)  # 256 signs
    expected = [-1.0 if word >> bit & 1 else 1.0 for word in first.tolist() for bit in range(32)]
    assert philox.signs(KEY, 5, 0, 256).tolist() == expected
    assert philox.signs(KEY, 5, 37, 100).tolist() == expected[37:137]


DRAW = """
import torch
from zo.noise import NoiseKey, engine
drawer = engine({noise!r})
drawn = drawer.draw_(torch.empty({count}), NoiseKey(1, 0, 0, 0), 0).tolist()
"""


def printed(code: str, *prefix: str, **env: str) -> subprocess.CompletedProcess:
    """Returns a process that ran the code behind a command's prefix; it must succeed."""
    made = subprocess.run(
        [*prefix, sys.executable, "-c", code],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert made.returncode == 0, made.stderr
    return made


@pytest.mark.process
def test_cpus_whose_normals_differ_have_other_backend_names():
    code = DRAW.format(noise="torch", count=4096) + "print(drawer.backend, drawn, sep=';')"
    names, draws = zip(
        *(
            printed(code, ATEN_CPU_CAPABILITY=capability).stdout.split(";")
            for capability in ("default", "avx2", "avx512")
        ),
        strict=True,
    )
    assert names[0] != names[1] == names[2]
    assert [draw == draws[0] for draw in draws] == [name == names[0] for name in names]


SOME = DRAW.format(noise="philox", count=3) + "print(drawn)"


@pytest.mark.process
def test_philox_is_compiled_where_no_directory_can_be_written(tmp_path, monkeypatch):
    """A package that cannot be written, in a container without a home."""
    copy = shutil.copytree(
        Path(zo.__file__).parent, tmp_path / "zo", ignore=shutil.ignore_patterns("__pycache__")
    )
    directories = [copy, *(path for path in copy.rglob("*") if path.is_dir())]
    without_privilege = []
    if os.geteuid() == 0:
        drop = "--bounding-set=-dac_override,-dac_read_search"
        without_privilege = [shutil.which("setpriv") or pytest.skip("no setpriv"), drop]
    home = {"HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none", "PYTHONPATH": str(tmp_path)}
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    try:
        for path in directories:
            path.chmod(0o555)
        made = printed(SOME, *without_privilege, **home)
    finally:
        for path in directories:
            path.chmod(0o755)
    here = engine("philox").draw_(torch.empty(3), NoiseKey(1, 0, 0, 0), 0)
    assert made.stdout.strip() == str(here.tolist())
    assert "set NUMBA_CACHE_DIR to one that can" in made.stderr


@pytest.mark.process
def test_damaged_compiled_code_is_made_again(tmp_path):
    first = printed(SOME, NUMBA_CACHE_DIR=str(tmp_path)).stdout
    for pattern in ("*.nbi", "*.nbc"):
        files = sorted(tmp_path.rglob(pattern))
        for i, file in enumerate(files):
            whole = file.read_bytes()
            half = len(whole) // 2
            flipped = whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :]
            file.write_bytes((flipped, whole[:half], b"")[i % 3])
        assert len(files) >= 3
        assert printed(SOME, NUMBA_CACHE_DIR=str(tmp_path)).stdout == first


@pytest.mark.process
def test_a_forked_process_draws_with_threads_of_its_own():
    """Its parent's are not there: whoever waited for them would wait for ever."""
    code = """
import os, torch
from zo.noise import NoiseKey, engine
torch.set_num_threads(2)
key = NoiseKey(1, 0, 0, 0)
expected = engine("philox").draw_(torch.empty(300_000), key, 0)
torch.ones(300, 300) @ torch.ones(300, 300)
child = os.fork()
if child == 0:
    drawn = engine("philox").draw_(torch.empty(300_000), key, 0)
    os._exit(0 if (drawn.numpy() == expected.numpy()).all() else 1)  # torch's threads are not there, either
print(os.waitpid(child, 0)[1])
"""
    assert printed(code).stdout == "0\n"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists its threads there")
def test_a_pass_in_several_threads_ends_those_that_torch_has_waiting():
    """They would keep a processor busy that the pass needs."""
    threads, a, tasks = torch.get_num_threads(), torch.ones(300, 300), Path("/proc/self/task")
    engine_of, out = engine("philox"), torch.empty(300_000)
    torch.set_num_threads(2)
    try:
        engine_of.draw_(out, NoiseKey(1, 0, 0, 0), 0)
        own = {*tasks.iterdir()}
        a @ a
        waiting = {*tasks.iterdir()} - own
        assert waiting, "torch computes in one thread"
        engine_of.draw_(out, NoiseKey(1, 0, 0, 0), 0)
        assert not waiting & {*tasks.iterdir()}
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("version", "is_new"), [("3.5.1", False), ("3.6.0", True), ("3.10", True)])
def test_philox_on_a_gpu_needs_a_triton_that_rounds_as_a_cpu(monkeypatch, version, is_new):
    monkeypatch.setattr(pytest.importorskip("triton"), "__version__", version)
    assert is_compiled("cuda:7") == is_new
    if not is_new:
        with pytest.raises(ValueError, match="Triton"):
            engine("philox", "cuda:7")
