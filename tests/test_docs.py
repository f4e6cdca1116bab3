"""Commands in README, docs and examples are composed or found, snippets and the notebook run."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import nbformat
import pytest
import torch
import yaml
from nbclient import NotebookClient

from launch.profile import SlurmProfile
from tests.support.tiny_models import VOCABULARY, llama
from tools import reference
from zo import config
from zo.__main__ import COMMANDS, main
from zo.config import command_line

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
ELSEWHERE = ("model.path=", "adapter.path=", "task.path=", "mezo_clip", "sweep=ablation")
"""Parts of commands about files of the reader's own, or of an example that the page itself adds."""


def blocks(page: Path, language: str = r"\w*") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands(start: str) -> list[str]:
    lines = [line.strip() for page in PAGES for of in blocks(page) for line in of.splitlines()]
    found = [re.split(r"\s+#", line)[0] for line in lines if line.startswith(start)]
    return list(dict.fromkeys(found))


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert len(commands("make ")) > 3
    for command in commands("make "):
        named = [word for word in shlex.split(command)[1:] if "=" not in word]
        assert set(named) <= targets, command


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.process] * ("sweep=table" in command))
        for command in [*commands("python train.py"), *commands("torchrun")]
        if not any(part in command for part in ELSEWHERE)
    ],
)
def test_every_training_command_composes(command):
    words = shlex.split(command)[2:]
    overrides = [word for word in words if "=" in word and not word.startswith("hydra")]
    config.register()
    assert command_line.runs(overrides, multirun="-m" in words)


def test_every_command_of_zo_is_one():
    """Also in examples, and in the text and messages of the product, which has no command under a former name."""
    files = (ROOT / "src", ROOT / "launch", ROOT / "analysis", ROOT / "conf", ROOT / "examples")
    texts = [p for of in files for p in of.rglob("*") if p.suffix in (".py", ".yaml", ".sh")]
    former = re.compile(r"python -m (launch|analysis)\b(?!\.local| WHAT)|python -m zo\.(?!rewards)")
    assert {command.split()[1] for command in commands("zo ")} <= {*COMMANDS}
    for path in [*PAGES, *texts]:
        text = path.read_text(encoding="utf-8")
        named = {*re.findall(r"(?:`|&& |do )zo ([a-z]+)\b", text)}
        assert named <= {*COMMANDS}, (path, named)
        assert not former.search(text), path


@pytest.mark.process
@pytest.mark.parametrize("name", sorted({c.split()[1] for c in commands("zo ")}))
def test_every_command_answers_help(name, capsys):
    with pytest.raises(SystemExit) as ended:
        sys.exit(main([name, "--help"]))
    assert ended.value.code in (0, None)
    assert f"zo {name}" in capsys.readouterr().out


@pytest.mark.process
@pytest.mark.parametrize(
    "module", sorted({c.split()[2] for c in commands("python -m ") if len(c.split()) > 2})
)
def test_every_module_answers_help(module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    for loaded in (module, f"{module}.__main__"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    assert ended.value.code in (0, None)
    assert len(capsys.readouterr().out) > 80


@pytest.mark.process
def test_every_snippet_of_the_librarys_page_runs(tmp_path, monkeypatch):
    """From the first to the last; TRL's SFTTrainer is among them."""
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    tokens = torch.randint(5, VOCABULARY, (3, 2, 6))
    given = {
        "model": llama(pad_token_id=0),
        "loader": [{"input_ids": t, "labels": t} for t in tokens],
        "data": [{"input_ids": t, "labels": t} for t in tokens.flatten(0, 1)],
    }
    snippets = blocks(ROOT / "docs" / "library.md", "python")
    assert len([line for line in snippets[0].splitlines() if line]) <= 4
    for snippet in snippets:
        exec(compile(snippet, "library.md", "exec"), given)
    assert (tmp_path / "run.zo").exists()


@pytest.mark.process
def test_the_notebook_of_a_first_run_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(ROOT / "examples" / "first_run.ipynb", as_version=4)
    run = notebook.cells[2]
    run.source = run.source.replace("steps=200 eval_every=50", "steps=40 eval_every=20")
    paths = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=paths).execute()
    told = [output.get("text", "") for c in notebook.cells for output in c.get("outputs", [])]
    assert any("5 of 5 runs ended, 0 failed" in text for text in told)
    assert notebook.cells[-2]["outputs"][0]["data"]["text/plain"] == "True"


def test_the_pages_written_by_hand_are_short():
    words = {page: len(page.read_text().split()) for page in PAGES}
    written = {f"{reference.PAGES}/{name}.md" for name in reference.WRITTEN}
    assert words[ROOT / "README.md"] <= 700
    assert sum(of for page, of in words.items() if str(page) not in written) <= 22_000


def test_a_citation_and_the_workflow_agree_with_the_project():
    text = (ROOT / "pyproject.toml").read_text()
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    for key in ("version", "license"):
        assert f'\n{key} = "{cited[key]}"\n' in text
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    runs = [[s["run"] for s in of["steps"] if "run" in s] for of in workflow["jobs"].values()]
    assert runs == [[".ci/run"], ["make quickstart TORCH=cpu", "make test"]]
    pythons = workflow["jobs"]["installation"]["strategy"]["matrix"]["python"]
    assert f'requires-python = ">={pythons[0]}"' in text


def test_the_profile_of_table_3s_page_is_one():
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/clusters.md").read_text(), re.S)
    values = yaml.safe_load(block)
    assert values.pop("defaults") == ["slurm", "_self_"]
    assert not list(SlurmProfile(**values).problems())
