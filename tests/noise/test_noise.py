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
from zo.noise import NOISES, NoiseKey, engine, philox

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


@pytest.mark.process
def test_cpus_whose_normals_differ_have_other_backend_names():
    code = (
        "import torch; from zo.noise import NoiseKey, engine; e = engine('torch'); "
        "z = e.draw_(torch.empty(4096), NoiseKey(1, 0, 0, 0), 0); "
        "print(e.backend, hash(tuple(z.tolist())), sep=';')"
    )
    names, draws = zip(
        *(
            subprocess.run(
                [sys.executable, "-c", code],
                env=os.environ | {"ATEN_CPU_CAPABILITY": capability},
                capture_output=True,
                check=True,
                text=True,
            ).stdout.split(";")
            for capability in ("default", "avx2", "avx512")
        ),
        strict=True,
    )
    assert names[0] != names[1] == names[2]
    assert [draw == draws[0] for draw in draws] == [name == names[0] for name in names]


@pytest.mark.process
def test_philox_is_compiled_where_no_directory_can_be_written(tmp_path):
    """A package that cannot be written, in a container without a home."""
    copy = shutil.copytree(
        Path(zo.__file__).parent, tmp_path / "zo", ignore=shutil.ignore_patterns("__pycache__")
    )
    directories = [copy, *(path for path in copy.rglob("*") if path.is_dir())]
    without_privilege = []
    if os.geteuid() == 0:
        drop = "--bounding-set=-dac_override,-dac_read_search"
        without_privilege = [shutil.which("setpriv") or pytest.skip("no setpriv"), drop]
    code = (
        "import torch; from zo.noise import NoiseKey, engine; "
        "print(engine('philox').draw_(torch.empty(3), NoiseKey(1, 0, 0, 0), 0).tolist())"
    )
    home = {"HOME": "/proc/none", "XDG_CACHE_HOME": "/proc/none", "PYTHONPATH": str(tmp_path)}
    env = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"} | home
    try:
        for path in directories:
            path.chmod(0o555)
        made = subprocess.run(
            [*without_privilege, sys.executable, "-c", code],
            env=env,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
    finally:
        for path in directories:
            path.chmod(0o755)
    assert made.returncode == 0, made.stderr
    here = engine("philox").draw_(torch.empty(3), NoiseKey(1, 0, 0, 0), 0)
    assert made.stdout.strip() == str(here.tolist())
    assert "set NUMBA_CACHE_DIR to one that can" in made.stderr


@pytest.mark.process
def test_damaged_compiled_code_is_made_again(tmp_path):
    code = (
        "import torch; from zo.noise import NoiseKey, engine; "
        "print(engine('philox').draw_(torch.empty(3), NoiseKey(1, 0, 0, 0), 0).tolist())"
    )
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def drawn() -> str:
        made = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300
        )
        assert made.returncode == 0, made.stderr
        return made.stdout

    first = drawn()
    for pattern in ("*.nbi", "*.nbc"):
        files = sorted(tmp_path.rglob(pattern))
        for i, file in enumerate(files):
            whole = file.read_bytes()
            half = len(whole) // 2
            flipped = whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :]
            file.write_bytes((flipped, whole[:half], b"")[i % 3])
        assert len(files) >= 3
        assert drawn() == first
