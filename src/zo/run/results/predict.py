"""Predictions for the rows of a file, by the model of a run or an exported one, as the run's evaluations make them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from zo.config import ConfigError, RunConfig, from_yaml
from zo.config.method_code import UntrustedError
from zo.lm.adapters.config import PeftAdapter
from zo.lm.baselines import reads_train
from zo.lm.load import Loaded
from zo.lm.objectives import scorers
from zo.lm.scoring.candidates import CandidateScorer, length_batches
from zo.lm.scoring.generation import Generator
from zo.run.assembly import load_adapted
from zo.run.logs.progress import Progress
from zo.run.predictions import rounded
from zo.run.results import export
from zo.run.store import atomic
from zo.run.store.directory import CONFIG, load, task_of
from zo.tasks import Encoded, TaskConfig, TaskError, tokenize
from zo.tasks.data import FileExamples, complete, load_file, load_rest
from zo.tasks.measures import NAMED, best_of
from zo.tasks.predictions import Confusion, class_names, names_of, table

UNUSABLE = (*export.UNUSABLE, TaskError)
"""What is wrong with what the user asked for, in one sentence."""

Added: TypeAlias = dict[str, Sequence[Any]]  # Columns of a table by name


def predict(
    source: Path,
    file: Path | None,
    out: Path | None = None,
    step: str = "best",
    model: str | None = None,
    device: str = "auto",
    rest: int = 0,
    without: Sequence[int] = (),
) -> tuple[str, list[str]]:
    """Returns a file's rows with their predictions as CSV, and what to say of them, one sentence each.

    Args:
        source: A run's directory, or one that `zo.export` wrote.
        file: csv, tsv, json, jsonl or parquet, with the columns of the run's task; labels may be missing. None: `rest`.
        out: Where the CSV is written, too.
        step: Of a run: a number, `best` or `last`.
        model: Path of the base model, if it is not where it was.
        device: auto, cpu, cuda or cuda:N.
        rest: So many rows of the task's own data that the run did not see, see `zo.tasks.data.load_rest`.
        without: Values of `task.train_set_seed` whose rows are left out of them, too.

    Raises:
        One of UNUSABLE: If that cannot be had.
    """
    if (file is None) == (rest <= 0):
        raise TaskError("give a file, or --rest N for N rows of the task that the run did not see")
    if file is not None and not file.is_file():
        raise TaskError(f"{file}: there is no such file; give a csv, tsv, json, jsonl or parquet")
    if out and ((file and out.resolve() == file.resolve()) or not out.parent.is_dir()):
        raise TaskError(f"--out {out}: must be a file in a directory that is there, and not {file}")
    is_run = (source / CONFIG).exists()
    cfg, task = _of_run(source) if is_run else _of_export(source)
    # before a model is loaded, which takes longer
    read = load_file(task, file) if file else load_rest(task, rest, without)
    if is_run:
        loaded = export.reach(source, step, model, device).assembly.loaded
    else:
        cfg.model.path, cfg.device = model or cfg.model.path, device
        loaded = load_adapted(cfg)[1]
    tokens = tokenize(read.task, loaded.tokenizer, read.examples, cfg.model.kind)
    cut = sum(e.cut > 0 for e in tokens)
    notes = [*read.notes]
    if cut:
        notes.append(f"task.max_length={task.max_length}: {cut} rows are longer and lose tokens")
    of_kind = _classify if task.kind in ("classification", "preference") else _generate
    added, more = of_kind(cfg, loaded, read, tokens)
    text = table(read.task, read.examples, added)
    if out is not None:
        atomic.replace(out, text)
        notes.append(f"{out}: {len(read.examples)} rows")
    return text, [*notes, *more]


def _of_run(run: Path) -> tuple[RunConfig, TaskConfig]:
    """Returns the configuration of a run that predictions can be made with, and its task."""
    cfg = load(run)
    if reads_train(cfg.optimizer):
        raise TaskError(
            f"{run}: optimizer={cfg.optimizer.name} reads the training examples at every evaluation; use a run of"
            " a method that trains, or of zero_shot"
        )
    return cfg, task_of(run, cfg)


def _of_export(directory: Path) -> tuple[RunConfig, TaskConfig]:
    """Returns the configuration of an exported model or adapter, its paths those of the directory, and its task."""
    settings = directory / export.SETTINGS
    if not settings.is_file():
        raise TaskError(
            f"{directory}: has neither {CONFIG} nor {export.SETTINGS}; give a run's directory, or one that"
            " zo export wrote"
        )
    try:
        cfg = from_yaml(settings.read_text(encoding="utf-8"))
    except UntrustedError as error:
        raise TaskError(f"{directory}: {error}") from None
    except (ConfigError, UnicodeDecodeError) as error:
        why = "; ".join(str(error).splitlines())
        raise TaskError(f"{settings}: is not what zo.export wrote ({why}); export again") from None
    if isinstance(cfg.adapter, PeftAdapter):
        cfg.adapter = type(cfg.adapter)(path=str(directory))
    else:
        cfg.model.path = str(directory)
    return cfg, complete(cfg.task)[0]


def _classify(
    cfg: RunConfig, loaded: Loaded, read: FileExamples, tokens: list[Encoded]
) -> tuple[Added, list[str]]:
    """Returns label, prediction and probability of each row, and how good the predictions are."""
    task, examples = read.task, read.examples
    scorer, _ = scorers(loaded, task, cfg.objective, cfg.precision.loss, graphs=False)
    assert isinstance(scorer, CandidateScorer)
    scorer.check(tokens)
    with Progress(0) as progress, progress.counting("evaluate", len(tokens)) as done:
        found = scorer.evaluate(tokens, cfg.eval_tokens, done)
    names = [names_of(task, example) for example in examples]
    predicted = [n[i] for n, i in zip(names, found.predictions, strict=True)]
    more = []
    if cfg.objective.of(task) == "dpo":
        more.append("pairs are ordered by the model's own log-probabilities, without the reference")
    added: Added = {"predicted": predicted, "probability": rounded(found.probabilities)}
    if not read.answered:
        return added, []
    labels = [e.label for e in examples]
    notes = [*more, f"accuracy {found.value:.1%} of {len(examples)} rows"]
    if (classes := class_names(task)) is not None:
        confusion = Confusion.of(labels, found.predictions, len(classes))
        notes.append(confusion.described(classes))
    true = [n[i] for n, i in zip(names, labels, strict=True)]
    return {"label": true, **added}, notes


def _generate(
    cfg: RunConfig, loaded: Loaded, read: FileExamples, tokens: list[Encoded]
) -> tuple[Added, list[str]]:
    """Returns the text that follows each row's prompt, and how good the texts are if the task measures them."""
    task = read.task
    generator = Generator(loaded.model, loaded.tokenizer, task.max_new_tokens, task.stop)
    generator.check(tokens)
    lengths = [len(e.prompt_ids) + task.max_new_tokens for e in tokens]
    texts = [""] * len(tokens)
    with Progress(0) as progress, progress.counting("evaluate", len(tokens)) as done:
        for group in length_batches(lengths, cfg.eval_tokens):
            written = generator.write([tokens[i] for i in group])
            for i, found in zip(group, written, strict=True):
                texts[i] = found.text
            done(len(group))
    notes = []
    if read.answered and task.measure is not None and not task.own_measure:
        pairs = zip(texts, tokens, strict=True)
        values = [best_of(task.measure, text, e.references) for text, e in pairs]
        mean = NAMED[task.measure].shown(sum(values) / len(values))
        notes.append(f"{task.measure} {mean} of {len(values)} rows")
    return {"predicted": texts}, notes
