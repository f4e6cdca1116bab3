"""What a command that makes no run must not wait for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "datasets", "pandas", "pyarrow", "matplotlib", "wandb", "scipy")
"""They take seconds to import, which --help and a refused configuration should not wait for."""

PROBLEM = "configuration: 1 problem\n  optimizer.eps=-1.0: must be greater than 0\nloaded []\n"
LOADED = f"""
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("loaded", [m for m in {HEAVY} if m in sys.modules], file=sys.stderr)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["-m", "optimizer=mezo,bszo", "optimizer.eps=-1"], 2, PROBLEM),
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


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "without", "has"),
    [
        ("zo", (*HEAVY, "numpy", "hydra"), "['AdaMeZO', 'BSZO', 'BSZOB',"),
        ("launch.status", HEAVY, ""),
    ],
)
def test_a_module_is_imported_without_them_too(module, without, has):
    code = f"import sys, {module} as m; print([n for n in {without} if n in sys.modules], dir(m))"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith(f"[] {has}"), done.stderr
