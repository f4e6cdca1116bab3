"""Imports go one way, and outside libraries stay in their rooms. Read from the syntax, not run."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
ANALYSIS = ROOT / "analysis"

# What each room of the core may import of zo; a package stands for itself and all within.
CORE = {
    "zo.noise": ("zo.noise",),
    "zo.posterior": (),
    "zo.stopwatch": (),
    "zo.directions": ("zo.noise",),
    "zo.streamed": (),
    "zo.factors": ("zo.noise", "zo.directions"),
    "zo.changes": ("zo.noise", "zo.directions"),
    "zo.excursions": ("zo.directions", "zo.changes", "zo.streamed", "zo.factors"),
    "zo.params": (
        "zo.noise",
        "zo.directions",
        "zo.changes",
        "zo.excursions",
        "zo.streamed",
        "zo.factors",
        "zo.stopwatch",
    ),
    "zo.optim": (
        "zo.noise",
        "zo.posterior",
        "zo.directions",
        "zo.changes",
        "zo.excursions",
        "zo.params",
        "zo.optim",
    ),
}
CORE_OUTSIDE = {"torch", "numpy"}
"""Third-party packages that the core may use."""

COMPILERS = {
    "zo.noise.cpu": {"numba"},
    "zo.noise.cuda": {"triton"},
    "zo.optim.fused.cpu": {"numba"},
    "zo.optim.fused.cuda": {"triton"},
}
"""What is imported only where noise is drawn with it."""


def module_name(path: Path, root: Path = SRC) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str, is_package: bool = False) -> set[str]:
    """Dotted names of all that a module imports, wherever in it, relative ones resolved."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, base]) if base else ".".join(package)
            found |= {f"{base}.{alias.name}" for alias in node.names}
        elif (  # importlib.import_module("x"), __import__("x")
            isinstance(node, ast.Call)
            and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found.add(str(node.args[0].value))
    return found


def imports_of(path: Path, root: Path = SRC) -> set[str]:
    return imports(path.read_text(), module_name(path, root), path.name == "__init__.py")


def within(name: str, packages) -> bool:
    return any(name == p or name.startswith(p + ".") for p in packages)


def top(name: str) -> str:
    return name.split(".")[0]


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def core_files() -> list[Path]:
    return [path for path in files(SRC) if within(module_name(path), CORE)]


def test_reader_sees_every_form_of_import():
    source = """
import a.b as c
from d import e
from . import f
from .g import h
from ..i import j
def later():
    import k
    importlib.import_module("l.m")
"""
    expected = {"a.b", "d.e", "zo.optim.f", "zo.optim.g.h", "zo.i.j", "k", "l.m"}
    assert imports(source, "zo.optim.bszo") == expected
    assert imports("from . import f", "zo.optim", is_package=True) == {"zo.optim.f"}


def test_the_core_is_where_it_should_be():
    names = {module_name(path) for path in core_files()}
    assert names >= set(CORE)
    assert names >= {"zo.optim.base", "zo.optim.mezo", "zo.optim.bszo"}


@pytest.mark.parametrize("path", core_files(), ids=module_name)
def test_core_imports_only_what_lies_to_its_left(path):
    room = next(room for room in CORE if within(module_name(path), [room]))
    inside = {name for name in imports_of(path) if top(name) == "zo"}
    wrong = {name for name in inside if not within(name, CORE[room])}
    assert not wrong, f"{path.name} must not import {sorted(wrong)}"


@pytest.mark.parametrize("path", core_files(), ids=module_name)
def test_core_knows_no_model_task_configuration_or_tracking_library(path):
    """Torch, numpy and the standard library are all that a method needs; what compiles has a module each."""
    outside = {top(name) for name in imports_of(path)} - {"zo"} - sys.stdlib_module_names
    assert outside <= CORE_OUTSIDE | COMPILERS.get(module_name(path), set())


def users_of(*libraries: str) -> set[str]:
    return {
        module_name(path)
        for path in files(SRC)
        if any(within(name, libraries) for name in imports_of(path))
    }


def test_only_config_sees_hydra():
    """Beside zo.config only zo.cells, the check of a command line, which only commands use."""
    assert users_of("hydra", "omegaconf", "hydra_plugins") <= {"zo.config", "zo.cells"}
    assert users_of("zo.cells") <= {"zo.cells", "zo.tasks.show"}
    assert not users_of("zo.tasks.show")


def test_only_tracking_sees_wandb():
    assert users_of("wandb") <= {"zo.tracking"}


def test_src_imports_nothing_around_it():
    assert not users_of("analysis", "launch", "train", "tests", "conf")


def test_only_the_shell_imports_the_run():
    """zo.run is the last of the line: nothing in the package imports it back."""
    assert users_of("zo.run") <= {"zo.run"}


@pytest.mark.parametrize("path", files(ANALYSIS), ids=lambda p: p.stem)
def test_analysis_meets_the_suite_only_through_logs(path):
    wrong = {n for n in imports_of(path, ROOT) if top(n) in {"torch", "zo", "transformers"}}
    assert not wrong, f"{path.name} must not import {sorted(wrong)}"


def test_the_configuration_alone_needs_no_library_of_models_or_data():
    """They take seconds to import, which --help and a refused configuration should not wait for."""
    heavy = ("transformers", "datasets", "pandas", "pyarrow", "matplotlib", "wandb")
    code = f"import sys, zo.cells; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr
