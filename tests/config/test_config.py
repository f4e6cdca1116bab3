"""Configuration: everything committed composes, everything wrong is named, nothing wrong starts."""

import itertools
import re
import shlex
import shutil
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from zo import config
from zo.config import ConfigError, command_line, from_yaml, identity, precision, to_yaml
from zo.config.checks import value_of
from zo.config.schema import option_schemas
from zo.lm.adapters.config import ADAPTERS
from zo.tasks.templates import typed as typed_in_a_shell

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = ("model", "task", "optimizer", "precision", "adapter", "objective")
GROUPS = {
    group: sorted(
        {p.stem for p in (ROOT / "conf" / group).glob("*.yaml")}
        | {*option_schemas().get(group, ())}
    )
    for group in (*CHOSEN, "sweep")
}

OWN, REWARD = "task.path=reviews.csv", "objective.function=rules:score"
NEEDS = {
    "adapter=layers": "adapter.pattern=x",
    "adapter=scales": "model.quantization=int4",
    "objective=completion": "task=squad",
    "objective=generation": "task=squad",
    **dict.fromkeys(("objective=dpo", "objective=simpo"), f"task=preference {OWN}"),
    "objective=reward": f"task=squad {REWARD}",
    "task=classification": OWN,
    "task=completion": OWN,
    "task=preference": OWN,
    "task=reward": f"{OWN} {REWARD}",
    "optimizer": "model=opt-1.3b precision.restore=streamed",
    "optimizer=eggroll": "model=opt-1.3b task=squad objective=generation",
    "precision": "model=opt-13b",  # paper is the model's own
}
"""What an option, or each option of a group, does not go without."""

NO_MEZZO = f"optimizer=mezzo: did you mean mezo? It must be one of {', '.join(GROUPS['optimizer'])}"

config.register()


def the_run(*overrides):
    (run,) = command_line.runs(list(overrides))
    return run


def needed(group, option):
    return NEEDS.get(f"{group}={option}", NEEDS.get(group, ""))


@cache
def composed(group, more):
    """The runs of the options of a group that need the same, in one command line."""
    options = [option for option in GROUPS[group] if needed(group, option) == more]
    typed = [f"{group}={','.join(options)}", "lr=1e-6", *more.split()]
    return dict(zip(options, command_line.runs(typed, multirun=len(options) > 1), strict=True))


@pytest.mark.parametrize(
    ("group", "option"),
    [(g, o) for g in CHOSEN for o in GROUPS[g]],  # sweeps: tests/launch
)
def test_every_committed_option_composes_and_validates(group, option):
    run = composed(group, needed(group, option))[option]
    resolves = {"paper": "bf16", "auto": "fp32", "reasoning_gym": "chain_sum"}
    assert getattr(run, group).name == resolves.get(option, option)
    assert config.from_yaml(config.to_yaml(run)) == run, "what is frozen is what was composed"
    if "/" in (path := getattr(getattr(run, group), "path", None) or "") and ":" not in path:
        assert len(getattr(run, group).revision) == 40, "what is at a hub is pinned to a commit"
    if group == "model" and option != "reviews-tiny":
        assert (run.steps, run.eval_every, run.patience) == (20_000, 500, 8), "the paper's values"
        assert (run.precision.noise, run.precision.restore) == ("philox", "merged")
    if group == "optimizer":
        resolved = {"square": False} if option == "subzero" else {}
        assert run.optimizer == type(run.optimizer)(**resolved), "the dataclass's defaults"
    if group == "adapter":
        own = {k: v for k, v in vars(run.adapter).items() if k in ("eps", "lr_grid", "pattern")}
        assert run.adapter == ADAPTERS[option](option, **own), "the dataclass's defaults"


def test_yaml_and_dataclasses_of_a_run_give_the_same_defaults():
    run, bare = the_run("model=opt-1.3b", "lr=1e-6"), config.RunConfig(lr=1e-6)
    groups = {"model", "task", "optimizer", "precision", "adapter"}
    for key in {f.name for f in fields(run)} - groups:
        assert getattr(run, key) == getattr(bare, key), key
    assert run.precision == precision.PrecisionConfig(name="fp32", restore="merged")


WRONG = """
!optimizer.m=1 !precision.noise=dice !device=tpu !eval_growth=nan !lr=0 !batch_size=2000
!lr_index=9 !distributed.shards=3 !precision.rounding=compensated
-m optimizer=mezo,bszo !lr=1e-6,-1
!+nope=3
lr=1 !task.temperature=1
!optimizer.name=x !adapter.name=lora
!model.lr_grid.bszo=[abc]
adapter=layers !adapter.pattern
adapter=layers !adapter.pattern='('
adapter=lora !adapter.path=/
adapter=scales lr=1 !model.quantization
lr=1 model=roberta-large task=sst2 !adapter=prompt !precision.graphs=true precision.restore=streamed
model=roberta-large task=sst2 !optimizer=icl
model.kind=encoder-decoder task=sst2 !optimizer=icl
model=roberta-large task=wsc lr=1 !task.masked_prompt
model=roberta-large task=copa lr=1 task.masked_prompt='<mask>' task.label_words=[a,b] !task.objective
task=copa !optimizer=linear_probe
model.kind=encoder-decoder task=sst2 !optimizer=linear_probe
precision=bf16 precision.noise=torch !precision.rounding=stochastic
precision=bf16 !precision.rounding=compensated optimizer=lozo precision.restore=factors lr=1e-3
optimizer=mezo !precision.restore=factors
optimizer=subzero adapter=lora lr=1 !precision.restore=factors
!model.offload=disk model.quantization=int8
model.offload=disk model=opt-1.3b task=sst2 optimizer=mezo !precision.restore=merged
model.offload=cpu model=opt-1.3b task=sst2 optimizer=lozo precision=bf16 !precision.rounding=compensated
objective=metric !objective.metric=auc
optimizer=lozo optimizer.anchor=start optimizer.anchor_decay=1e3 !precision.restore=factors lr=1
optimizer=mezo optimizer.anchor=start !optimizer.anchor_decay
optimizer=mezo !task.also=nosuch
optimizer=mezo !task.also={name:classification}
optimizer=mezo !task.also={name:sst2,nope:1}
optimizer=mezo !task.also={path:'reasoning_gym:gcd',nope:1}
!objective=generation
optimizer=adam !distributed.shards=2
distributed.tensor=2 !precision.restore=streamed
optimizer=fzoo budget=forward_passes !steps=8
-m !hydra.launcher.x=1,2
!hydra/launcher=joblib
task=reward task.path=a.csv lr=1 !objective.function
task=reward task.path=a.csv lr=1 objective.function=math_verify !task.references
task=reward task.path=a.csv lr=1 !objective.function=reasoning_gym
task=reasoning_gym lr=1 objective.functions={rules.py:a:1} !objective.function=b:c !objective.on_error=skip
task=reasoning_gym lr=1 !objective.functions={score:1} !objective.timeout=0 !objective.workers=0
task=reasoning_gym lr=1 !task.samples=2 !task.top_p=0
task=sst2 !objective.function=rules.py:score !objective.beta=3 !objective.timeout=3
task=reasoning_gym lr=1 !objective.functions={rules.py:a:1,rules.py:a:2}
"""
"""Command lines: the words behind ! are wrong, or name what is missing."""


@pytest.mark.parametrize("typed", WRONG.strip().splitlines())
def test_what_is_wrong_is_refused_by_its_keys(typed):
    multirun, words = typed.startswith("-m "), typed.removeprefix("-m ").split()
    with pytest.raises(ConfigError) as caught:
        command_line.runs([w.strip("!") for w in words if "=" in w], multirun=multirun)
    wrong = {word[1:].partition("=")[0] for word in words if word[0] == "!"}
    assert {problem.key for problem in caught.value.problems} == wrong


ADVICE = {
    "lr": "lr: write key=value, as lr=1e-6, without blanks",
    "steps = 5": "steps = 5: write steps=5, without blanks",
    "optimizer=mezo lr= 1e-3": "lr= 1e-3: write lr=1e-3, without blanks",
    "optimizer=mezo lr 1e-3": "lr: write lr=1e-3, without blanks",
    "lr=1e-3, 1e-4": "lr=1e-3, 1e-4: write lr=1e-3,1e-4, without blanks",
    "optimizer=mezo task.path=my reviews.csv seed=1":
        "task.path=my reviews.csv: write 'task.path=my reviews.csv', in quotes",
    "model.path=a;b": "model.path=a;b: Hydra cannot read this value; put it in quotes: 'model.path=\"a;b\"'",
    "-m lr=1e-6,": "lr=1e-6,: a value is missing behind the last comma",
    "lr=1e-6,1e-7": "lr=1e-6,1e-7: add -m to run several values",
    "-m sweep=quickstart,compare": "sweep=quickstart,compare: must be one value for all runs",
    "-m lr=interval(1e-6,1e-3)": "lr: a grid takes values, as lr=1e-6,1e-7, and no interval(...)",
    "-m seed=glob(*)": "seed=glob(*): stands for no value",
    "seed=0..4": "seed=0..4: must be a whole number; several, with -m, are 0,1,2",
    "steps=1e4": "steps=1e4: must be a whole number, written 10000",
    "lr=64GB": "lr=64GB: must be a number without its unit, as 64",
    f"seed={10**22}": f"seed={10**22}: must be 0 to 9223372036854775807",
    "task.pompt=x": "task.pompt=x: no such key; did you mean prompt?",
    "optimizer.lr=1e-3": "optimizer.lr=1e-3: no such key; here it is lr, without optimizer",
    "adapter.r=4": "adapter.r=4: no such key; it is a key of adapter=lora",
    "learning_rate=1e-4": "learning_rate=1e-4: no such key; here it is lr",
    "wandb=false": "wandb=false: no such key; here it is tracking.mode, as tracking.mode=disabled",
    "hydra.job.chdir=true": "hydra.job.chdir=true: is not read; of Hydra's own keys hydra.launcher, hydra.mode, ",
    "task=classification task.path=a.csv task.data_files.train=a.csv":
        "task.data_files.train=a.csv: is null; give its keys together, as task.data_files={train:a.csv}",
    "adapter=prompt": "lr: must be given, as -m lr=1e-4,1e-3,1e-2: no learning rates of bszo are known for adapter=",
    "optimizer=mezzo lr=abc optimizer.epss=1": NO_MEZZO
        + "\nlr=abc: must be a number, as 1e-6\noptimizer.epss=1: no such key; did you mean eps?",
    "model=opt-125m": "model=opt-125m: did you mean opt-13b? A directory or a model of the hub is model.path=opt",
    "model=gpt2": "model=gpt2: a directory or a model of the hub is model.path=gpt2; else it must be one of "
        f"{', '.join(GROUPS['model'])}",
    "task=data/mine.csv": "task=data/mine.csv: data of your own are task=classification task.path=data/mine.csv, or "
        f"task=completion; else it must be one of {', '.join(GROUPS['task'])}",
    "sweep=table3": "sweep=table3: did you mean table3_mistral_7b or table3_opt_13b or table3_opt_1_3b? It must be",
    "lr=1e-4 lr_index=1": "lr_index=1: must be left out beside lr, which is the rate itself",
    "--lr=3": "--lr=3: no such option; keys are written without dashes: lr=3",
    "--dry-run": "--dry-run: `zo submit KEY=VALUE ... --dry-run` lists runs,"
        " `zo train --cfg job` shows one",
    "--config-name foo": "--config-name=foo: conf/config.yaml is the only one; choose its parts,"
        " as model=opt-13b task=rte",
    "--config-dir /conf": "--config-dir=/conf: give the directory as hydra.searchpath=[file:///conf]",
    "--cfg job --config-dir /conf":
        "--config-dir=/conf: give the directory as hydra.searchpath=[file:///conf]",
    f"lr=1 task=reward task.path={ROOT}/README.md objective.function=no/rules.py:score":
        "objective.function: no such file no/rules.py; give FILE.py:FUNCTION",
    "-m name=..": "name=..: must be letters, digits, and . _ + or -, with a letter, digit or _ first",
    "optimizer=mezo seed=1 optimizer=bszo":
        "optimizer=bszo: given 2 times; give it once, or -m optimizer=mezo,bszo",
}  # fmt: skip
"""Wordings that are promised: how it is written, and what was meant."""


@pytest.mark.parametrize("typed", ADVICE)
def test_what_was_meant_is_advised(typed, capsys):
    with pytest.raises(SystemExit):
        command_line.check_command_line(typed.split())
    heading, *lines = capsys.readouterr().err.splitlines()
    assert heading == f"configuration: {len(lines)} problem{'s' * (len(lines) > 1)}"
    assert "\n".join(line.removeprefix("  ") for line in lines).startswith(ADVICE[typed])


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (['task.prompt="{text} It was'], """'task.prompt="{text} It was"'"""),
        (["task.prompt='{text} It was"], """'task.prompt="{text} It was"'"""),
        (["task.prompt={text} It was"], """'task.prompt="{text} It was"'"""),
        (["task.candidates=[ bad, good]"], """'task.candidates=[" bad"," good"]'"""),
        (["task.candidates=[", "bad,", "good]"], """'task.candidates=[" bad"," good"]'"""),
        (["optimizer=mezo", "task.path=my", "own.csv"], "'task.path=my own.csv'"),
        (["lr =1e-3"], "lr=1e-3"),
    ],
)
def test_a_value_whose_quotes_or_blanks_are_not_read_is_written_as_it_is(words, written):
    with pytest.raises(ConfigError) as caught:
        command_line.runs(words)
    (said,) = str(caught.value).splitlines()
    assert written in said
    (meant,) = shlex.split(written)
    (run,) = command_line.runs(
        [meant, "task=classification", "lr=1"] + [OWN] * ("path" not in meant)
    )
    if "candidates" in meant:
        assert run.task.candidates == [" bad", " good"]


@pytest.mark.parametrize("text", ["{text} {Q: what's}", 'say "{a}"', "y", " {b}\\n"])
def test_settings_of_the_task_that_are_advised_can_be_pasted(text):
    (typed_,) = shlex.split(typed_in_a_shell("text", text))
    (run,) = command_line.runs(["task=completion", OWN, "lr=1", typed_])
    assert run.task.text == text


PROBES = {
    "": ("philox", "merged", "float32 drifts little"),
    "precision=bf16": ("philox", "streamed", "bfloat16 drifts otherwise"),
    "precision=fp16": ("philox", "streamed", "float16 drifts otherwise"),
    "precision=bf16 precision.graphs=true": ("philox", "merged", "streamed cannot with precision.graphs"),
    "precision=bf16 distributed.tensor=2": ("philox", "merged", "streamed cannot with distributed.tensor"),
    "model.offload=cpu": ("philox", "streamed", "weights are offloaded"),
    "optimizer=sparse_mezo": ("philox", "streamed", "the method reads weights"),
    "precision=paper": ("torch", "merged", "as the released codes; precision=bf16 is faster"),
    "precision.restore=snapshot": ("philox", "snapshot", "as typed"),
}  # fmt: skip


@pytest.mark.parametrize("typed", PROBES)
def test_the_defaults_are_the_fast_ways_and_the_papers_those_of_the_released_codes(typed):
    given = "model=opt-13b", "task=sst2", "optimizer=mezo", "lr=1e-6", *typed.split()
    (run,) = command_line.runs(given)
    noise, restore, why = PROBES[typed]
    assert (run.precision.noise, run.precision.restore) == (noise, restore)
    (line,) = config.probe_note(run)
    assert line.startswith(f"precision.noise={noise} precision.restore={restore}: ")
    assert why in line
    assert config.probe_note(the_run("steps=0")) == []


BUDGETS = [("mezo", 360), ("bszo", 240), ("fzoo", 80), ("adam", 240)]
GYM, FUNCTIONS = (
    ("task=reasoning_gym", "lr=1"),
    {"rules.py:score": 1.0, "trl.rewards:think_format_reward": 0.2},
)
GIVES = [
    ([], {"steps": 600, "eval_every": 100, "patience": None, "precision.noise": "philox",
          "precision.restore": "streamed"}),
    (["steps=7"], {"steps": 7}),
    (["task=classification", "task.path=csv", "task.data_files={train:a.csv}", "lr=1"],
        {"task.data_files": {"train": "a.csv"}}),
    (["adapter=lora", "optimizer=mezo"], {"optimizer.eps": 1e-2, "lr": 1e-4}),  # its own eps, and MeZO's grid
    (["adapter=lora", "optimizer=mezo", "optimizer.eps=1e-3", "lr=3e-5"], {"optimizer.eps": 1e-3, "lr": 3e-5}),
    (["adapter=lora", "adapter.eps=null"], {"optimizer.eps": 1e-4}),
    (["adapter=lora", "optimizer.eps=1e-4"], {"optimizer.eps": 1e-4, "adapter.eps": None}),  # the default, but typed
    (["adapter=bias"], {"lr": 3e-4}),  # the model's rates
    *(([f"optimizer={of}", "budget=forward_passes", "steps=720", "eval_every=180"],
        {"steps": n, "eval_every": n // 4, "budget": "steps"}) for of, n in BUDGETS),
    (["out=2024_01", "tracking.group=1e-3", "task.text=true"],
        {"out": "2024_01", "tracking.group": "1e-3", "task.text": "true"}),
    ([*GYM, "task.options={max_terms: 2}", "task.options.min_terms=2"],
        {"task.options": {"max_terms": 2, "min_terms": 2}}),
    ([*GYM, "objective.functions={rules.py:score: 1, trl.rewards:think_format_reward:0.2}"],
        {"objective.functions": FUNCTIONS}),
    ([*GYM, r"objective.functions={rules.py\:score: 1, trl.rewards\:think_format_reward:0.2}"],
        {"objective.functions": FUNCTIONS}),
]  # fmt: skip
"""What is typed, and values of the run."""


@pytest.mark.parametrize(("typed", "values"), GIVES)
def test_what_is_typed_gives_a_runs_values(typed, values):
    run = the_run(*typed)
    assert {key: value_of(run, key) for key in values} == values


def test_the_default_run_is_one_of_the_quickstarts_with_values_of_its_model():
    quickstart = [config.identity_settings(run) for run in command_line.runs(["sweep=quickstart"])]
    assert config.identity_settings(the_run()) in quickstart
    given = command_line.runs(["sweep=quickstart", "lr=7e-7"])
    assert {run.lr for run in given if run.steps} == {7e-7}, "what is typed wins over the grid"


def test_a_run_without_steps_says_so_where_its_method_has_some():
    said = "steps=0 trains nothing; the weights are scored as they are"
    assert said in config.notes(the_run("steps=0"))
    assert said not in config.notes(the_run("optimizer=zero_shot"))


def test_multirun_may_stand_anywhere_and_a_home_directory_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    given = ["model.path=~/weights", "out=~", "task.prompt=a=~/b", "~lr", "--multirun", "seed=0,1"]
    read = ["--multirun", "model.path=/home/me/weights", "out=/home/me", "task.prompt=a=~/b", "~lr"]
    assert command_line.readable(given) == [*read, "seed=0,1"]
    assert command_line.readable(["task.options={a: 2}"]) == ["++task.options={a: 2}"], (
        "a key of one's own"
    )
    grid = command_line.runs([*GYM, "task.name=chain_sum,gcd"], multirun=True)
    assert [of.task.path for of in grid] == ["reasoning_gym:chain_sum", "reasoning_gym:gcd"]


def id_of(*overrides):
    return identity.run_id(the_run(*overrides))


IDS = {
    "precision.restore=merged": (
        "out=elsewhere device=cpu tracking.mode=offline resume=false lr_index=1 lr=0.0003 threads=1"
        " optimizer.m=3 optimizer.eps=1e-4 checkpoint.full_every=7 precision.restore=subtract"
        " model.name=mine task.install=null adapter=none distributed.timeout=5"
        " distributed.check_every=null distributed.shards=1 objective.workers=3",
        "seed=1 lr=3e-6 optimizer.k=4 precision=bf16 precision.noise=torch steps=7 batch_size=8"
        " task.train_size=999 adapter=lora adapter=bias distributed.shards=2",
    ),
    "optimizer=zero_shot": (  # which makes no steps
        "seed=1 lr=1 precision.noise=torch batch_size=8 eval_every=7 patience=3",
        "precision=bf16 task.test_size=99",
    ),
    "steps=0 adapter=prefix": ("batch_size=8", "seed=1 task.test_size=99"),
    "steps=0 adapter=lora": ("seed=1", "task.test_size=99"),
    "model=opt-1.3b lr=1e-6": ("model.architecture.hidden_size=64", "model.weights=random"),
    "model=opt-1.3b lr=1e-6 model.weights=random": ("", "model.architecture.hidden_size=64"),
    "task=reasoning_gym lr=1 optimizer=mezo task.temperature=1 objective.on_error=0": (
        "objective.workers=3",
        "task.name=gcd task.options={max_terms:2} objective.on_error=stop task.samples=2"
        " task.temperature=2",
    ),
}
"""A run -> changes that leave its id, and changes that give it another one each."""


@pytest.mark.parametrize("base", IDS)
def test_the_id_depends_on_what_decides_the_numbers_alone(base):
    typed, (same, other) = base.split(), IDS[base]
    own, ids = id_of(*typed), [id_of(*typed, word) for word in other.split()]
    assert [word for word in same.split() if id_of(*typed, word) != own] == []
    assert len({own, *ids}) == 1 + len(ids), dict(zip(other.split(), ids, strict=True))


def test_a_stored_configuration_is_text_that_refers_to_nothing():
    parts = ("$", "\\", "{", "}", "lr", "${oc.env:HOME}")
    texts = ["".join(word) for n in (1, 2, 3) for word in itertools.product(parts, repeat=n)]
    run = the_run()
    run.task.prompt, run.model.architecture = (
        "${price} {text}",
        {"model_type": "opt", "texts": texts},
    )
    stored = from_yaml(to_yaml(run))
    assert stored == run


KNOWN = {
    "optimizer=bszo lr=1e-6 steps=20000 eval_every=500 patience=8 precision.noise=torch"
    " precision.restore=merged": "bszo-a831234d7bb8",
    "model=opt-13b task=sst2 precision=paper optimizer=mezo lr=1e-6": "mezo-29a7747709c5",
    "model=roberta-large task=cb optimizer=zero_shot": "zero_shot-49955643890a",
    "optimizer=mezo adapter=lora lr=1e-4": "mezo-abe27a001060",
    "optimizer=subzero lr=1e-3": "subzero-7157f16f4c55",
    "optimizer=lozo_m lr=1e-3": "lozo_m-2942c960b3d6",
}


def test_ids_stay_where_they_are():
    """A change here makes every run anew: raise NUMBERS and say so in CHANGELOG.md, or find what moved them."""
    assert {typed: id_of(*typed.split()) for typed in KNOWN} == KNOWN
    divided = id_of("optimizer=lozo_m", "lr=1e-3", "optimizer.divide_by_rank=true")
    assert divided != "lozo_m-1c2d04d4931e", "of before biases and norms were left undivided"


OLDER = {
    ("optimizer=sparse_mezo", "lr=1e-3"): ("optimizer.scope=all", "sparse_mezo-5d93cc70df81"),
    ("optimizer=subzero", "adapter=lora", "lr=1e-3"): ("optimizer.square=false", "subzero-0f393164a9d3"),
    ("adapter=lora", "precision=bf16"): ("adapter.dtype=model", "bszo-c596a13a20c6"),
    ("adapter=prompt", "lr=1e-3", "precision=fp16"): ("adapter.dtype=model", "bszo-d0d6277a3f4a"),
}  # fmt: skip
"""A run -> the setting that a file without it means, and the id of before there was one."""


@pytest.mark.parametrize("run", OLDER)
def test_an_id_and_a_file_of_before_a_setting_mean_what_was_done_then(run):
    setting, was = OLDER[run]
    group, key, value = re.split("[.=]", setting)
    old = the_run(*run, setting)
    assert identity.run_id(old) == was != id_of(*run)
    written = yaml.safe_load(config.to_yaml(old))
    del written[group][key]
    read = config.from_yaml(yaml.safe_dump(written))
    assert read == old
    assert str(getattr(getattr(read, group), key)).lower() == value


def mistakes(kind):
    """Yields values that a setting's type, or the type's range, does not have."""
    base, *ranges = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    container, parts = get_origin(base) in (list, dict), {*get_args(base)} or {base}
    if base is not Any:
        yield [1] if str in parts and not container else "nope"
    for value in (-1, 0, 2**70, -0.5, "nope"):
        typed = not container and (base is Any or type(value) in parts)
        if typed and any(not of.holds(value) for of in ranges):
            yield value


def mistaken_keys(run):
    """Returns (group, key, value) of a run's settings and of those of its groups."""
    nodes = {"": run, **{group: of for group, of in vars(run).items() if is_dataclass(of)}}
    kinds = {group: get_type_hints(type(of), include_extras=True) for group, of in nodes.items()}
    keys = [(group, of.name) for group, node in nodes.items() for of in fields(node)]
    wrong = [(*key, value) for key in keys for value in mistakes(kinds[key[0]][key[1]])]
    return [(group, key, "nope" if key in nodes else value) for group, key, value in wrong]


@settings(max_examples=25, phases=[Phase.generate])
@given(st.data())
def test_one_wrong_value_of_a_stored_configuration_is_named_by_its_key(data):
    """Of any setting of any method, adapter, model, task, precision and objective."""
    group = data.draw(st.sampled_from(CHOSEN))
    option = data.draw(st.sampled_from(GROUPS[group]))
    run = composed(group, needed(group, option))[option]
    written = yaml.safe_load(to_yaml(run))
    place, key, value = data.draw(st.sampled_from(mistaken_keys(run)))
    (written[place] if place else written)[key] = value
    with pytest.raises(ConfigError) as caught:
        from_yaml(yaml.safe_dump(written))
    assert (f"{place}." if place else "") + key in {of.key for of in caught.value.problems}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.lr_grid.mezo", 3),
        ("objective.functions", {"a": {"b": 1}}),
        ("task.labels", {"a": 1}),
        *itertools.product(("optimizer.name", "adapter.name"), ([1], {"a": 1}, 3, "nope", None)),
        *itertools.product(("optimizer.file",), ([1], {"a": 1}, 3)),
    ],
)
def test_a_wrong_value_within_a_setting_is_named_by_its_key(key, value):
    written = yaml.safe_load(to_yaml(the_run()))
    *above, last = key.split(".")
    reduce(dict.__getitem__, above, written)[last] = value
    with pytest.raises(ConfigError, match=rf"{re.escape(key)}="):
        from_yaml(yaml.safe_dump(written))


def test_the_id_holds_the_adapter_and_the_content_of_its_file_and_of_the_models(tmp_path):
    base = ("optimizer=mezo", "lr=1e-4", "optimizer.eps=1e-3", "adapter=lora")
    ids = [id_of(*base[:3]), id_of(*base), id_of(*base, "adapter.r=4")]
    assert id_of(*base, "adapter.eps=null") == ids[1], "what counts is optimizer.eps"
    for key in ("adapter.path", "model.path"):
        for weights in ("one", "two"):
            place = tmp_path / f"{key}-{weights}"
            place.mkdir()
            (place / "adapter_config.json").write_text("{}")
            (place / "adapter_model.safetensors").write_text(weights)
            ids.append(id_of(*base, f"{key}={place}"))
        place.rename(tmp_path / key)
        assert id_of(*base, f"{key}={tmp_path / key}") == ids[-1]
    assert len(set(ids)) == 7
    assert id_of(*base, "adapter.dtype=model") == ids[1], "the weights are float32"


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        (
            "task=classification task.path={at} task.data_dir=sub task.data_files={{train:a.csv}}",
            "sub/a.csv",
        ),
        (
            "task=classification task.path=csv task.data_files={{train:'{at}/**/a.csv'}}",
            "sub/deep/a.csv",
        ),
        ("task.also={{name:classification,path:{at},data_files:{{train:sub/a.csv}}}}", "sub/a.csv"),
    ],
)
def test_the_id_holds_the_content_of_every_data_file(typed, changed, tmp_path):
    place = tmp_path / changed
    place.parent.mkdir(parents=True)
    ids = []
    for content in ("text,label\na,0\nb,1\n", "text,label\na,1\nb,0\n"):
        place.write_text(content)
        ids.append(id_of("lr=1", *typed.format(at=tmp_path).split()))
    assert len({*ids}) == 2


def test_help_names_every_option_of_every_group():
    lines = command_line.help_text().splitlines()
    for group, options in GROUPS.items():
        (line,) = (x for x in lines if x.split()[:1] == [group])
        assert line.split(maxsplit=1)[1] == ", ".join(options)


SWEEPER = "hydra: {mode: MULTIRUN, sweeper: {params: {seed: '0,1'}}}"
GLOBAL = "# @package _global_\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"stps: 6\n{SWEEPER}", "sweep=mine: stps: no such key; did you mean steps?"),
        (f"steps: lots\n{SWEEPER}", "sweep=mine: steps: must be a whole number"),
        ("precision: {restor: x}", "sweep=mine: precision.restor: no such key; did you mean restore?"),
        (SWEEPER.replace("params", "parms"), "sweep=mine: hydra.sweeper.parms: no such key; did you mean params?"),
        (SWEEPER.replace("mode", "mod"), "sweep=mine: hydra.mod: no such key; did you mean mode?"),
        ("hydra: {sweeper: {lines: {mezo: }}}", "sweep=mine: hydra.sweeper.lines: is called arms now"),
        ("steps:\n\t6", "sweep/mine.yaml: line 3 has a tab; indent with spaces"),
        ("steps: [6", "sweep/mine.yaml: line 2 is not YAML: "),
        (None, "conf: is not installed with "),
    ],
)  # fmt: skip
def test_a_file_of_conf_that_is_wrong_or_missing_is_one_sentence(
    text, told, tmp_path, monkeypatch, capsys
):
    """Without any of them, --help is, too."""
    if text is not None:
        shutil.copytree(ROOT / "conf", tmp_path / "conf")
        (tmp_path / "conf" / "sweep" / "mine.yaml").write_text(GLOBAL + text)
    monkeypatch.setattr(command_line, "CONFIG_DIR", tmp_path / "conf")
    for argv in (["sweep=mine"], ["--help"])[: 1 + (text is None)]:
        with pytest.raises(SystemExit) as caught:
            command_line.check_command_line(argv)
        heading, line = capsys.readouterr().err.splitlines()
        assert (caught.value.code, heading) == (2, "configuration: 1 problem")
        assert told in line
