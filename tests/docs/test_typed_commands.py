"""Commands of README and docs, run as a reader types them, page by page; only steps and sizes are smaller."""

import csv
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from zo import __main__ as commands
from zo.lm.baselines import BASELINES
from zo.run import signals
from zo.tasks.measures import NAMED

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

NOT_RUN = {
    r"model=(opt|mistral)|sweep=(table|figure)|task=(sst2|\$task)|model.path=weights/$": "a hub",
    r"^(hf|wandb) ": "a hub",
    r"launcher=|SLURM|^(sinfo|sbatch) |slurm": "SLURM",
    r"stage=|compare_tune|compare_smollm2|sweep=compare": "hours of runs, which these commands begin or read",
    r"\b(ablation|mine)\b": "files that the page adds, run by tests/launch/test_own_sweep.py",
    r"^make ": "its targets exist: the same as `zo`, or what builds and tests the project",
    r"^(git|pip|apt-get|export|cd|tar) |^\. |^zo dashboard": "another program, or its server",
    r"^bash examples": "run by the test of examples",
}
"""What is in a command -> what it needs, or who runs it. The tests of `test_docs` compose those of `train.py`."""

LOOKS = r"--estimate|^zo status|zo submit.*sweep=quickstart.*--dry-run"
"""What only looks needs none of this."""

PROGRAMS = ("python", "zo", "torchrun", "bash", "make", "pip", "git", "hf", "wandb", "tar", "sinfo")
PROGRAMS += ("sbatch", "apt-get", "cp", "cd", "export", ".")
POINTLESS = r"hardly moves?\b|which moves nothing|trains nothing|are MeZO's to|survives|(\d+) of \1 steps had equal"
"""What the suite says of a run that cannot learn."""

BEFORE = {
    "analysis.md": ["python train.py -m sweep=quickstart"],
    "sharing.md": ["python train.py optimizer=bszo lr=1e-3"],
}
"""Page -> what its reader has done before."""

RUN = re.compile(r"out/(\w+)-0123456789ab")


def blocks(page: Path) -> Iterator[list[str]]:
    """Yields the lines of a page's blocks of commands: fenced without a language or as bash, or indented."""
    block: list[str] | None = None
    language = ""
    for line in [*page.read_text().splitlines(), ""]:
        if line.startswith("```"):
            if block is not None and language in ("", "bash"):
                yield block
            block, language = ([], line[3:]) if block is None else (None, "")
        elif block is not None:
            block.append(line)
        elif line.startswith("    "):
            yield [line.strip()]


def lines(page: Path) -> Iterator[str]:
    """Yields the commands of a page in order, without their comments."""
    for block in blocks(page):
        if block[0].split(" ")[0] in PROGRAMS:
            for line in block:
                command = re.split(r"\s+#\s", line)[0].strip()
                yield from filter(None, command.split(" && "))


def needed(command: str) -> str | None:
    if re.search(LOOKS, command):
        return None
    return next((why for part, why in NOT_RUN.items() if re.search(part, command)), None)


TYPED = {page: [line for line in lines(page) if needed(line) is None] for page in PAGES}
TYPED = {page: found for page, found in TYPED.items() if found}


def shortened(words: list[str]) -> list[str]:
    """Returns the words of a training with few steps, examples and members."""
    few = {"task.train_size": "16", "task.validation_size": "4", "task.test_size": "4"}
    methods = [word[10:].split(",") for word in words if word.startswith("optimizer=")]
    if not methods or {*BASELINES}.isdisjoint(methods[0]):
        few |= {"steps": "3", "eval_every": "3"}
    if any(word.startswith("optimizer.n=") for word in words):
        few["optimizer.n"] = "4"
    return [*(w for w in words if w.partition("=")[0] not in few), *map("=".join, few.items())]


def call(command: str, monkeypatch) -> int | str | None:
    """Runs a command of this project in this process, another one as such; returns its exit status."""
    words = shlex.split(RUN.sub(lambda found: str(first_run(found[1])), command))
    if words[0] == "torchrun":  # of two processes: each more takes seconds to start
        started = [sys.executable, "-m", "torch.distributed.run", words[1], "2", words[3]]
        command = [*started, *shortened(words[4:])]
        return subprocess.run(command, check=False, timeout=200).returncode
    if words[0] not in ("python", "zo"):
        return subprocess.run(words, check=False, timeout=200).returncode
    if words[:2] == ["python", "train.py"]:
        words[:2] = ["zo", "train"]
    if words[1] == "train":
        words[2:] = shortened(words[2:])
    if words[1].startswith("examples/chat"):
        words.append("3")
    try:
        if words[0] == "zo":
            return commands.main(words[1:])
        monkeypatch.setattr(sys, "argv", words[1:])
        runpy.run_path(words[1], run_name="__main__")
    except SystemExit as ended:
        return ended.code
    return 0


def first_run(method: str) -> Path:
    runs = Path("out").glob(f"{method}-*")
    return min(runs, key=lambda run: (run / "lock").stat().st_mtime_ns)


@pytest.fixture(autouse=True)
def handlers():
    """Puts back what commands do to this process's signals and arguments."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """The working directory of somebody who has cloned the project, and has a file of new reviews."""
    for name in ("examples", "tests", "conf", "train.py", "Makefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    rows = list(csv.DictReader((ROOT / "examples/reviews.csv").open()))[:5]
    with (tmp_path / "new.csv").open("w") as file:
        made = csv.DictWriter(file, [k for k in rows[0] if k != "label"], extrasaction="ignore")
        made.writeheader()
        made.writerows(rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signals, "end_at_once", lambda: None)
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name, marks=[pytest.mark.process] * (page.stem != "install"))
        for page in TYPED
        if (name := page.relative_to(ROOT).as_posix())
    ],
)
def test_the_commands_of_a_page_do_what_it_says(page, checkout, monkeypatch, capfd):
    for command in [*BEFORE.get(page.name, ()), *TYPED[page]]:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            status = call(command, monkeypatch)
        heard = [*capfd.readouterr(), *(str(of.message) for of in warned)]
        said = " ".join(" ".join(heard).split())
        assert not status, (command, heard)
        assert not re.search(POINTLESS, said), (command, heard)
    assert not set().union(*map(unnamed, (at.parent for at in Path("out").glob("*/status.json"))))


def unnamed(run: Path) -> set[str]:
    """Returns the files of a run and the keys of its status that the page of the run directory does not name."""
    page = (ROOT / "docs/reference/run-directory.md").read_text()
    keys = json.loads((run / "status.json").read_text())
    measure = re.compile(rf"(best/(?:val|test)_)(?:{'|'.join(NAMED)})$")
    named = {key: measure.sub(r"\1<measure>", key) for key in keys}
    return {key for key, of in named.items() if f"`{of}`" not in page} | {
        path.name
        for path in run.iterdir()
        if not any(f"`{path.name}{end}`" in page for end in ("", "/"))
    }


def test_every_reason_not_to_run_a_command_is_one_of_a_commands():
    typed = [line for page in PAGES for line in lines(page)]
    assert {needed(line) for line in typed} == {None, *NOT_RUN.values()}
    assert sum(map(len, TYPED.values())) > 50


@pytest.mark.process
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.sh")), ids=lambda at: at.stem)
def test_an_example_ends_with_a_model_that_transformers_loads(script, tmp_path):
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command, how = ["bash", script, tmp_path / "made", "4"], {"capture_output": True, "text": True}
    done = subprocess.run(command, cwd=tmp_path, env=env, timeout=300, check=False, **how)
    assert done.returncode == 0, done.stderr
    assert not re.search(POINTLESS, done.stdout + done.stderr), done.stdout
    assert (tmp_path / "made" / "model" / "model.safetensors").is_file()
    starts = "'a warm and funny story': ", "'the plot is': "
    assert done.stdout.splitlines()[-1].startswith(starts)
