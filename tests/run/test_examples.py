"""The commands of docs/your-own.md on the data in examples/: two steps, then a model that transformers loads."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from zo import config
from zo.config import command_line
from zo.run.export import export
from zo.run.runner import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your-own.md").read_text()
COMMANDS = re.findall(r"^python train\.py (.*)$", PAGE, re.MULTILINE)
FEW = ["steps=2", "eval_every=2", "batch_size=4", "tracking.mode=disabled", "task.train_size=8"]
FEW += ["task.validation_size=4", "task.test_size=4", "task.max_new_tokens=4"]


@pytest.fixture
def t5(tmp_path):
    spec = importlib.util.spec_from_file_location("make_t5", ROOT / "examples" / "make_t5.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(str(tmp_path / "t5"))
    return tmp_path / "t5"


@pytest.mark.process
@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: shlex.split(c)[0] + shlex.split(c)[1])
def test_a_command_ends_with_a_model_that_transformers_loads(command, t5, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    config.register()
    words = [f"model.path={t5}" if w == "model.path=t5" else w for w in shlex.split(command)]
    (cfg,) = command_line.runs([*words, *FEW, f"out={tmp_path / 'out'}"])
    summary = run(cfg)
    assert summary["run/status"] == "finished"
    assert summary["run/steps"] == 2
    (directory,) = (tmp_path / "out").glob("mezo-*")
    export(directory, "last", tmp_path / "model")
    kind = AutoModelForSeq2SeqLM if cfg.model.kind == "encoder-decoder" else AutoModelForCausalLM
    kind.from_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(tmp_path / "model")
