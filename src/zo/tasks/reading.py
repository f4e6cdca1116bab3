"""Reads the rows of a split from a task's files, data set or hub repository, and checks what it reads."""

from __future__ import annotations

import glob
import importlib.util
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from zo.tasks import hub, package_files, rows
from zo.tasks.config import TaskConfig, TaskError
from zo.tasks.rows import ENDINGS, Rows
from zo.tasks.templates import shown

INSTALL = "`pip install 'zo-suite[rewards]'` installs it"
MISSING_PACKAGE = f"task.path: reasoning_gym is not installed; {INSTALL}"

FORMATS = ("csv", "json", "parquet")
"""Values of ``task.path`` that give the format of ``task.data_files``."""

SAVED = ("state.json", "dataset_dict.json")
"""Files in a directory written by ``save_to_disk`` of `datasets`."""

COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".7z")

SHOWN = 8  # Files of a split that a message lists

NO_DATA = ("", ".md", ".py", ".yaml", ".yml", ".bib", ".cff", ".lock")
"""Endings of files that nobody expects to be read."""

NAMING = "name the file of each split, as 'task.data_files={train:FILE,test:FILE}'"

Named: TypeAlias = tuple[str, Path]  # The key that names a file, and the file

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation", "holdout"),
}
"""Split -> words in the names of its files or directories."""

SPLIT_WORD = {
    split: re.compile(f"({'|'.join(words)})(set|data|file|split|s)?")
    for split, words in SPLITS.items()
}


SHARD = re.compile("([0-9]+)-of-([0-9]+)")

FOLD = re.compile("(?i)(?:fold|cv)[-_ ]?[0-9]+")


def read_split(task: TaskConfig, split: str) -> Rows:
    """Returns the rows of a split, filtered by ``task.where``. Raises TaskError if they cannot be loaded as said."""
    found = _load(task, split)
    keep = np.ones(len(found), dtype=bool)
    for column, wanted in (task.where or {}).items():
        found.require(column, "where")
        values = wanted if isinstance(wanted, list) else [wanted]
        texts = {shown(value) for value in values} | {str(v) for v in values if v in (True, False)}
        there = found.values(column)
        keep &= (kept := [v in values or shown(v) in texts for v in there])
        if not any(kept):
            listed = ", ".join([*dict.fromkeys(map(shown, there))][:SHOWN])
            raise TaskError(
                f"task.where: no row of {found.source} has {wanted} in {column}; give a value of it, as {listed}"
            )
    return found if keep.all() else found.select(np.flatnonzero(keep))


def check_addresses(task: TaskConfig) -> None:
    """Raises TaskError if a path or a file of a pip package does not exist. Asks no hub and imports no datasets."""
    _check_one_source(task)
    if task.generated_by():
        if importlib.util.find_spec("reasoning_gym") is None:
            raise TaskError(MISSING_PACKAGE)
        return
    addresses = {"path": task.path}
    if task.path in FORMATS:
        addresses |= {f"data_files.{split}": f for split, f in (task.data_files or {}).items()}
    for key, address in addresses.items():
        if "://" in address or (key != "path" and glob.has_magic(address)):
            continue
        try:
            package_files.existing(address)
        except FileNotFoundError as error:
            remedy = f"`{task.install}` installs it" if task.install else "give the path of a copy"
            raise TaskError(f"task.{key}: {error}; {remedy}") from None


def _check_one_source(task: TaskConfig) -> None:
    """Checks that ``task.data_files`` does not override ``task.path``."""
    if task.path in FORMATS:
        return
    local = Path(task.path).expanduser().is_file()
    for split, file in (task.data_files or {}).items():
        own = file.startswith(package_files.PREFIX) or Path(file).expanduser().is_absolute()
        if split == "train" if local else own:
            raise TaskError(
                f"task.path={task.path} would not be read: task={task.name} reads {file}, its"
                f" task.data_files.{split}; use task=classification or task=completion for your own data,"
                f" or task.data_files.{split}=FILE for a copy of this task's file"
            )


def split_names(task: TaskConfig) -> list[str]:
    """Returns the names of the splits that the data have. Raises TaskError as `read_split`."""
    local = _local_files(task)
    return [name for name in (_of_data_set(task, None) if local is None else local) if name]


def _load(task: TaskConfig, split: str) -> Rows:
    """Returns a split without filtering."""
    local = _local_files(task)
    if local is None:
        return _of_data_set(task, split)
    said = _files_of(task, local)
    local.pop("", None)
    if split not in local:
        raise _no_split(task, split, local, said)
    parts = []
    for key, file in local[split]:
        try:
            parts.append(rows.read(file, key, task.path if task.path in FORMATS else None))
        except OSError as error:
            why = f"{error.strerror}; give a file that can be read"
            raise TaskError(f"{key}: {file}: {why}") from None
    found = rows.joined(parts, [file for _, file in local[split]])
    return replace(found, notes=[*found.notes, *[said] * bool(said)])


def _files_of(task: TaskConfig, local: dict[str, list[Named]]) -> str:
    """Returns a sentence about the files of each split and those left out; empty for files that the task names."""
    if task.data_files or sum(map(len, local.values())) < 2:
        return ""
    listed = []
    for split in sorted(local, key=lambda name: (not name, name)):
        files = [str(file) for _, file in local[split]]
        more = f" and {len(files) - SHOWN} more" * (len(files) > SHOWN)
        why = "not read, since their format differs or their names do not name one split"
        listed.append(f"{split or why}: {', '.join(files[:SHOWN])}{more}")
    return f"{task.path}: {'; '.join(listed)}"


def _local_files(task: TaskConfig) -> dict[str, list[Named]] | None:
    """Returns the key and path of each split's files; None if `datasets` reads a data set."""
    check_addresses(task)
    path, given = Path(package_files.resolve(task.path)), _data_files(task)
    found: dict[str, list[Named]] = {}
    base = Path()
    if task.path not in FORMATS and path.is_file():
        found = {"train": [("task.path", path)]}
    elif task.path not in FORMATS:
        base = path / (task.data_dir or "")
        if not given or not path.is_dir():
            return _of_directory(base) if path.is_dir() and not _is_data_set(task, path) else None
    for split, file in given.items():
        whole = base / file
        matching = [] if whole.is_file() else sorted(glob.glob(str(whole), recursive=True))
        places = [*map(Path, matching)] or [whole]
        if not places or not all(place.is_file() for place in places):
            return None
        found[split] = [(f"task.data_files.{split}", place) for place in places]
    return found


def _data_files(task: TaskConfig) -> dict[str, str]:
    """Returns the address of each split's file, if the task names files."""
    return {n: package_files.resolve(file) for n, file in (task.data_files or {}).items()}


def _is_data_set(task: TaskConfig, path: Path) -> bool:
    """Returns whether a directory describes its own files."""
    if task.subset or any((path / name).exists() for name in (*SAVED, "dataset_infos.json")):
        return True
    card = path / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    return re.match(r"---\n(.*\n)*?(configs|dataset_info):", text) is not None


def _of_directory(base: Path) -> dict[str, list[Named]] | None:
    """Returns the files of each split, by the words in their names; without such names parts of one file train.

    Only the most frequent format counts. Other files are under an empty name. None without files.
    """
    names = {p: p.relative_to(base) for p in sorted(base.rglob("*")) if p.is_file()}
    names = {p: name for p, name in names.items() if not re.search(r"(^|/)\.", str(name))}
    kinds = {p: ENDINGS[p.suffix.lower()] for p in names if p.suffix.lower() in ENDINGS}
    packed = [str(path) for path in names if path.suffix.lower() in COMPRESSED]
    if packed and not kinds:
        listed = ", ".join(packed[:SHOWN]) + ", ..." * (len(packed) > SHOWN)
        raise TaskError(f"task.path: {base} has only compressed files; unpack them: {listed}")
    most = Counter(kinds.values()).most_common(1)
    counted = [path for path, kind in kinds.items() if (kind, most[0][1]) in most]
    splits = {path: split_of(str(names[path])) for path in counted}
    if not any(splits.values()):
        _check_parts(base, [str(names[path]) for path in counted])
        splits = dict.fromkeys(counted, "train")
    _check_shards(base, counted)
    _check_one_set(base, {str(names[path]): split for path, split in splits.items() if split})
    found: dict[str, list[Named]] = {}
    for path in names:
        if path in kinds or path.suffix.lower() not in NO_DATA:
            found.setdefault(splits.get(path, ""), []).append(("task.path", path))
    return found if kinds else None


def _check_parts(base: Path, names: Sequence[str]) -> None:
    """Raises TaskError unless files whose names say no split are parts of one: their names differ in digits alone."""
    if len({re.sub("[0-9]+", "", name) for name in names}) > 1:
        listed = ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)
        raise TaskError(
            f"task.path: no name of {base}'s files {listed} says train, validation or test; {NAMING}; a pattern as"
            f" *{Path(names[0]).suffix} names all"
        )


def _check_shards(base: Path, files: Iterable[Path]) -> None:
    """Raises TaskError if of numbered files, as `train-00000-of-00003.parquet`, some are not there."""
    found = [(path, part) for path in files if (part := SHARD.search(path.name))]
    counts = Counter((path.parent, path.name[: of.start()], of[2]) for path, of in found)
    for (_, name, total), count in counts.items():
        if count < int(total):
            raise TaskError(
                f"task.path: {base} has {count} of the {int(total)} files {name}...; add the others, or {NAMING}"
            )


def _check_one_set(base: Path, splits: Mapping[str, str]) -> None:
    """Raises TaskError if several folders or folds hold rows out: folds train on what others hold out."""
    found: dict[str, set[str]] = {}
    for name, split in splits.items():
        *folders, file = Path(name).parts
        parts = [FOLD.findall(of) if split_of(of) else [of] for of in folders]
        found.setdefault("/".join(sum(parts, FOLD.findall(file))), set()).add(split)
    several = [of for of, there in found.items() if "train" in there and len(there) > 1]
    if len(several) > 1:
        one = f"task.data_dir={several[0]} or " * (base / several[0]).is_dir()
        raise TaskError(
            f"task.path: {base} has training and held-out files of each of {', '.join(several[:SHOWN])}; name those of"
            f" one set, as {one}'task.data_files={{train:FILE,test:FILE}}'; a pattern as */train* names all"
        )


def split_of(name: str) -> str:
    """Returns the split that a file's name or else the nearest of its directories names; empty for none or two."""
    for part in reversed(Path(re.sub("(?i)h(eld|old)[-_ ]?out", "holdout", name)).parts):
        words = [word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])", part)]
        named = {of for of, known in SPLIT_WORD.items() if any(map(known.fullmatch, words))}
        if named:
            return named.pop() if len(named) == 1 else ""
    return ""


def _of_data_set(task: TaskConfig, split: str | None) -> Any:
    """Returns the rows of a split of the hub or of a directory of a data set, or all data sets by name."""
    import datasets  # takes a second, and local files need none of it

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # a load is counted by asking the hub
    path = package_files.resolve(task.path)
    options: dict[str, Any] = {"data_files": _data_files(task) or None}
    options |= {"name": task.subset, "data_dir": task.data_dir, "revision": task.revision}
    if path == "csv":  # words as NA and null stay text
        options["keep_default_na"] = False
    if Path(path).exists():  # whose files may have changed since: the cache does not look
        options["download_mode"] = "force_redownload"
    try:
        with hub.quiet(datasets.logging), hub.patient(path in FORMATS or Path(path).exists()):
            if any((Path(path) / name).exists() for name in SAVED):
                found = datasets.load_from_disk(path)
                found = found if isinstance(found, dict) else {"train": found}
                if split is not None and split not in found:
                    raise _no_split(task, split, found)
                found = found if split is None else found[split]
            else:
                found = datasets.load_dataset(path, split=split, **options)
    except TaskError:
        raise
    except Exception as error:  # the library raises a dozen kinds for "could not be loaded"
        raise _unreachable(task, split, error) from error
    if split is None:
        return found
    return replace(rows.of_data_set(found), source=f"split {split!r} of {_named(task)}")


def _no_split(
    task: TaskConfig, split: str | None, there: Iterable[str], said: str = ""
) -> TaskError:
    """Returns the error for a split that the data do not have."""
    keys = ("train_split", "validation_split", "test_split")
    given = next((k for k in keys if getattr(task, k) == split), "train_split")
    right = f"must be one of {', '.join(there)}, the splits of {_named(task)}"
    return TaskError(f"task.{given}={split}: {right}" + f" ({said}); {NAMING}" * bool(said))


def _no_configuration(task: TaskConfig, there: list[str]) -> TaskError:
    """Returns the error for a configuration that the data do not have, as a copy without the hub's README.md."""
    other = f"; there are {', '.join(there)}" * (there not in ([], ["default"]))
    folder = f" task.data_dir={task.subset}" * (Path(task.path) / str(task.subset)).is_dir()
    right = f"task.subset=null{folder} reads the files as they are"
    what = f"no configuration {task.subset!r} in {task.path}{other}"
    return TaskError(f"task.subset={task.subset}: {what}; {right}")


def _named(task: TaskConfig) -> str:
    part = task.subset or task.data_dir
    return f"{task.path} ({part})" if part else task.path


def _unreachable(task: TaskConfig, split: str | None, error: Exception) -> TaskError:
    """Returns the error for a data set that cannot be loaded, with what to do."""
    reason = hub.first_line(error)
    if reason.startswith("Unknown split"):
        return _no_split(task, split, re.findall(r"'([^']+)'", reason.split(". ")[-1]))
    if re.match("BuilderConfig .* not found", reason):
        return _no_configuration(task, re.findall(r"'([^']+)'", reason.partition("Available")[2]))
    key = "task.data_files" if task.data_files else "task.path"
    named = "the splits" if split is None else f"split {split!r}"
    there = "" if task.path in FORMATS else package_files.absent(task.path)
    message = f"{key}: {there}{named} of {_named(task)} cannot be loaded ({reason})"
    if hub.cannot_write(error):
        remedy = hub.ELSEWHERE
    elif not isinstance(error, OSError):  # there, but not as the configuration says
        return TaskError(message)
    elif task.install:
        remedy = f"`{task.install}` installs it"
    elif task.data_files or Path(task.path).is_dir():
        remedy = "give the path of a copy that has it"
    else:
        command = f"hf download --repo-type dataset {task.path}"
        command += f" --revision {task.revision}" if task.revision else ""
        command += f" --local-dir {task.path.split('/')[-1]}"
        copies = "downloads a copy for task.path=<local copy>"
        remedy = f"where the hub can be reached, `{command}` {copies}"
    return TaskError(f"{message}; {remedy}")
