"""What the package imports and brings: nothing heavy before a run, and three libraries without extras."""

import ast
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import zo
from zo.__main__ import COMMANDS
from zo.extras import print_every_character
from zo.library.methods import METHODS
from zo.optim import OPTIMIZERS

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "datasets", "pandas", "pyarrow", "vl_convert", "wandb", "scipy")
"""They take seconds to import, which --help and a refused configuration should not wait for."""


def started(*command, cwd=ROOT, env=os.environ):
    how = {"capture_output": True, "text": True, "timeout": 300, "check": False}
    return subprocess.run([*map(str, command)], cwd=cwd, env=env, **how)


def python(*arguments, cwd=ROOT, **env):
    return started(sys.executable, *arguments, cwd=cwd, env={**os.environ, **env})


PROBLEM = "configuration: 1 problem\n  optimizer.eps=-1.0: must be greater than 0\nloaded []\n"
LOADED = f"""
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("loaded", [m for m in {HEAVY} if m in sys.modules], file=sys.stderr)
"""


MODULES = 120
"""Of the suite's own that a run of the default configuration imports, out of more than 200."""


@pytest.mark.process
def test_a_run_imports_the_modules_that_it_uses(tmp_path):
    """Rewards, offload, adapters, other methods and policies, several processes: not one of their modules."""
    given = ("steps=4", f"out={tmp_path}", "tracking.mode=disabled")
    listed = LOADED.replace(f"m for m in {HEAVY} if m in sys.modules", "*sys.modules")
    done = python("-c", listed, "train.py", *given)
    assert done.returncode == 0, done.stderr[-2000:]
    own = {*re.findall(r"'((?:zo|launch)(?:\.\w+)*)'", done.stderr)}
    assert {"zo", "launch", "zo.run.runner", "zo.optim.bszo"} <= own
    assert len(own) <= MODULES, sorted(own)


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["-m", "optimizer=mezo,bszo", "optimizer.eps=-1"], 2, PROBLEM),
        (["model.path=/no/such"], 2, "model.path: there is no file or directory /no/such"),
        (["-m", "task.path=/no/such", "seed=0,1"], 1, "0 of 3 runs ended, 3 failed"),
        (["--cfg", "job"], 0, "name: bszo"),
        (["--help"], 0, "Groups"),
        (["-sc", "query=bash"], 0, "optimizer=bszo"),
    ],
)
def test_what_makes_no_run_imports_no_library_of_tensors_models_or_data(arguments, status, says):
    completion = {"COMP_LINE": "python train.py optimizer=", "COMP_POINT": "26"}
    done = python("-c", LOADED, "train.py", *arguments, **completion)
    assert done.returncode == status, done.stderr
    assert says in done.stdout + done.stderr
    assert done.stderr.endswith("loaded []\n"), done.stderr


@pytest.mark.process
def test_a_module_is_imported_without_them_too():
    for module, without, has in (
        ("zo", (*HEAVY, "numpy", "hydra"), "['AdaMeZO', 'BSZO', 'BSZOB',"),
        ("launch.status", HEAVY, ""),
    ):
        loaded = f"[n for n in {without} if n in sys.modules]"
        done = python("-c", f"import sys, {module} as m; print({loaded}, dir(m))")
        assert done.stdout.startswith(f"[] {has}"), done.stderr


EXAMPLE = """
import sys
for name in "datasets hydra omegaconf pandas rich scipy tokenizers transformers wandb xxhash yaml".split():
    sys.modules[name] = None  # importing it fails, as where it is not installed
import copy
import torch
from torch import nn
import zo

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
again, x = copy.deepcopy(model), torch.randn(16, 4)
optimizer = zo.BSZO(model, lr=1e-2, k=2, prior_std=1.0, record="run.zo")
for _ in range(30):
    optimizer.step(lambda: model(x).square().mean())
zo.replay(again, "run.zo")
assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))
print(zo.__file__)

from zo import export, trajectory

assert trajectory.main(["info", "run.zo"]) == 0
for command, given in ((trajectory, ["info", "."]), (export, [".", "--out", "weights"])):
    assert command.main(given) == 2
"""


@pytest.mark.process
def test_the_wheel_without_extras_trains_and_replays(tmp_path):
    """Built from a copy of what is under version control."""
    copy, site = tmp_path / "source", tmp_path / "site"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    python(*pip, "--target", site, copy)
    (info,) = site.glob("zo_suite-*.dist-info")
    needs = metadata.PathDistribution(info).requires or []
    plain = {Requirement(r).name for r in needs if "extra ==" not in r}
    assert plain == {"torch", "numpy", "safetensors"}
    done = python("-c", EXAMPLE, cwd=tmp_path, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    file, *info = done.stdout.splitlines()
    assert Path(file).is_relative_to(site)
    assert "method" in "".join(info)
    assert done.stderr.count("; pip install 'zo-suite[suite]'") == 2


def test_every_text_file_is_opened_with_its_encoding():
    """Otherwise the locale decides how a file that was written elsewhere is read."""
    others = r"(?<!\bos)(?<!\bself)(?<!\bSession)(?<!\bAlso)"
    text = re.compile(rf"(\.read_text|\.write_text|{others}\.open|^open)$")
    for path in (p for room in ("src", "launch", "analysis") for p in (ROOT / room).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and text.search(ast.unparse(call.func)):
                modes = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
                binary = ast.unparse(call.func).endswith("open") and "b" in "".join(modes)
                named = {k.arg for k in call.keywords} & {"encoding", "text"}
                assert binary or named, f"{path}:{call.lineno}"


def test_every_character_is_printed_whatever_the_locales_encoding(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="iso-8859-1")
    monkeypatch.setattr(sys, "stdout", stream)
    print_every_character()
    print("Ärger → ⏎", flush=True)
    assert stream.buffer.getvalue() == b"\xc4rger \\u2192 \\u23ce\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("start", "given"),
    [
        (["train.py"], ["train"]),
        (["-m", "launch.status"], ["status"]),
        (["-m", "analysis", "tables"], ["tables"]),
        (["-m", "zo.run"], ["resume"]),
        (["-m", "zo.tasks.show"], ["show"]),
    ],
)
def test_a_command_under_its_former_name_says_the_same_and_its_name(start, given):
    former, told = (python(*of, "--help") for of in (start, ["-m", "zo", *given]))
    assert former.returncode == told.returncode == 0
    assert former.stdout == told.stdout != ""
    assert f"zo {given[0]}" in told.stdout
    assert (told.stderr, "is now the command `zo " in former.stderr) == ("", "-m" in start)


@pytest.mark.process
def test_commands_are_listed_and_a_wrong_one_is_named():
    listed = python("-m", "zo").stdout
    assert re.findall(r"^  zo (\w+) ", listed, re.M) == [*COMMANDS]
    wrong = python("-m", "zo", "trian")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith(
        "zo: no command 'trian'; did you mean train? It must be one of train, submit, "
    )


def test_the_public_classes_are_those_of_the_registry_with_its_settings():
    found = {name for name in zo.__all__ if isinstance(getattr(zo, name), type)}
    assert {kind.__name__ for kind in METHODS.values()} < found
    assert dir(zo) == sorted(zo.__all__)
    for name, kind in METHODS.items():
        config, arguments = OPTIMIZERS[name].config, inspect.signature(kind).parameters
        given = {key: of.default for key, of in arguments.items() if hasattr(config, key)}
        assert config(**given) == config()
        assert {of.name for of in fields(config)} - {"name"} <= given.keys()
        assert list(arguments)[:2] == ["params", "lr"]
        said = dict(re.findall(r"^    (\w+): (.{5,})", kind.__doc__, re.M))
        assert said.keys() == arguments.keys(), name
    assert zo.__version__ == metadata.version("zo-suite")


@pytest.mark.process
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_type_checkers_accept_right_and_refuse_wrong_use(checker, tmp_path):
    file, config = ROOT / "tests/support/user_code.py", tmp_path / "pyright.json"
    read = {"include": [str(file)], "extraPaths": [str(ROOT / "src")]}
    config.write_text(json.dumps({**read, "typeCheckingMode": "standard"}))
    of_pyright = ("-p", config, "--pythonpath", sys.executable)
    given = ("--no-incremental", file) if checker == "mypy" else of_pyright
    told = python("-m", checker, *given).stdout
    lines = enumerate(file.read_text().splitlines(), 1)
    wrong = {n for n, line in lines if line.endswith("# wrong")}
    assert {int(n) for n in re.findall(r"user_code\.py:(\d+):.*error", told)} == wrong, told


FAKE = """#!/bin/sh
echo "$0 $*" >>{log}
case "$*" in
  *"venv --clear"*) mkdir -p "$4/bin" && cp --remove-destination "$0" "$4/bin/python";;
  *"pip install"*) exit {pip};;
esac
"""


@pytest.mark.parametrize(
    ("pip", "arguments", "code", "said"),
    [
        (0, [], 0, "make setup TORCH=cpu takes less"),
        (0, ["TORCH=cpu"], 0, ""),
        (1, [], 2, "Call make again when it is gone"),
        (0, ["PYTHON=python3.9-is-not-here"], 2, "Python 3.11 or newer is needed"),
    ],
)
def test_setup_says_what_to_do_and_makes_an_environment_whose_interpreter_is_gone_anew(
    pip, arguments, code, said, tmp_path
):
    fake, log, there = (tmp_path / name for name in ("python", "log", "env"))
    fake.write_text(FAKE.format(log=log, pip=pip))
    fake.chmod(0o755)
    (there / "bin").mkdir(parents=True)
    (there / "bin/python").symlink_to(tmp_path / "gone")
    (there / "run").touch()
    command = ["make", "setup", f"VENV={there}", f"PYTHON={fake}", *arguments]
    done = started(*command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert said in done.stdout + done.stderr
    assert (done.returncode, (there / "run").exists()) == (code, code == 0)
    calls = log.read_text() if log.exists() else ""
    assert ("download.pytorch.org/whl/cpu -e" in calls) == (arguments == ["TORCH=cpu"])
    assert ("TORCH=cpu" in done.stdout) == (not arguments)
