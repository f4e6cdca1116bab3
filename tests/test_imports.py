"""What import-linter cannot say: which room a library may be seen in, and what a configuration must not import."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
CORE = ("noise", "weights", "optim")
COMPILED = {"cpu.py": {"numba", "llvmlite"}, "cuda.py": {"triton"}}
"""Files that compile the passes over the weights, and with what."""


def libraries_of(path: Path) -> set[str]:
    """Top-level packages outside of zo and the standard library that a file imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "zo").split(".")[0])
    return found - {"zo"} - sys.stdlib_module_names


@pytest.mark.parametrize("room", CORE)
def test_the_methods_need_torch_and_numpy_alone(room):
    for path in (SRC / "zo" / room).rglob("*.py"):
        assert libraries_of(path) <= {"torch", "numpy"} | COMPILED.get(path.name, set()), path


def test_wandb_is_imported_in_one_file():
    users = {path.name for path in SRC.rglob("*.py") if "wandb" in libraries_of(path)}
    assert users == {"tracking.py"}


def test_the_package_imports_nothing_around_it():
    around = {"analysis", "launch", "train", "tests", "conf", "benchmarks"}
    assert not {path for path in SRC.rglob("*.py") if libraries_of(path) & around}


HEAVY = ("torch", "transformers", "datasets", "pandas", "pyarrow", "matplotlib", "wandb", "scipy")
"""They take seconds to import, which --help and a refused configuration should not wait for."""

LOADED = f"""
import atexit, runpy, sys
atexit.register(lambda: print("loaded", [m for m in {HEAVY} if m in sys.modules], file=sys.stderr))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["optimizer=mezzo"], 2, "must be one of adam, adamezo, bszo"),
        (["model.path=/no/such"], 2, "model.path: there is no file or directory /no/such"),
        (["-m", "task.path=/no/such", "seed=0,1"], 1, "0 of 2 runs ended, 2 failed"),
        (["--cfg", "job"], 0, "name: bszo"),
        (["--help"], 0, "Groups"),
        (["-sc", "query=bash"], 0, "optimizer=bszo"),
    ],
)
def test_what_makes_no_run_imports_no_library_of_tensors_models_or_data(arguments, status, says):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, "train.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "COMP_LINE": "python train.py optimizer=", "COMP_POINT": "26"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stderr
    assert says in done.stdout + done.stderr
    assert done.stderr.endswith("loaded []\n"), done.stderr
