"""A task's files or hub repository -> the rows of a split, once it is known that they can be meant."""

from __future__ import annotations

import csv
import glob
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zo.tasks import hub, package_files
from zo.tasks.config import TaskConfig, TaskError

if TYPE_CHECKING:
    import datasets

MISSING_PACKAGE = (
    "task.path: reasoning_gym is not installed; `pip install 'zo-suite[rewards]'` brings it"
)

FORMATS = ("csv", "json", "parquet")
"""Values of ``task.path`` that say how ``task.data_files`` are read."""

TEXT_ENDINGS = (".csv", ".tsv", ".tab", ".json", ".jsonl")
SAVED = ("state.json", "dataset_dict.json")
"""Files of a directory that `datasets` wrote by ``save_to_disk``."""


def read_split(task: TaskConfig, split: str) -> tuple[datasets.Dataset, np.ndarray]:
    """Returns the rows of a split that ``task.where`` keeps, and their numbers in the file, from 0.

    Raises:
        TaskError: If they are out of reach, or a file is not of the format that it is read as.
    """
    rows = _load(task, split)
    keep = np.ones(len(rows), dtype=bool)
    for column, wanted in (task.where or {}).items():
        require_column(rows, column, "where")
        values = wanted if isinstance(wanted, list) else [wanted]
        keep &= np.array([entry in values for entry in rows[column][:]], dtype=bool)
    numbers = np.flatnonzero(keep)
    return (rows if keep.all() else rows.select(numbers)), numbers


def check_addresses(task: TaskConfig) -> None:
    """Makes sure that paths, and files of pip packages, are there. Neither asks the hub nor imports datasets.

    Raises:
        TaskError: If one is not; names its key.
    """
    _check_one_source(task)
    if task.generated_by():
        if importlib.util.find_spec("reasoning_gym") is None:
            raise TaskError(MISSING_PACKAGE)
        return
    addresses = {"path": task.path}
    if task.path in FORMATS:
        addresses |= {f"data_files.{split}": f for split, f in (task.data_files or {}).items()}
    for key, address in addresses.items():
        if "://" in address or glob.has_magic(address):
            continue
        try:
            package_files.existing(address)
        except FileNotFoundError as error:
            remedy = f"`{task.install}` brings it" if task.install else "give the path of a copy"
            raise TaskError(f"task.{key}: {error}; {remedy}") from None


def _check_one_source(task: TaskConfig) -> None:
    """Makes sure that no file of ``task.data_files`` is read instead of what ``task.path`` names."""
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
    """Returns the names of the splits that the data have.

    Raises:
        TaskError: As `read_split`.
    """
    return list(_load(task, None))


def _load(task: TaskConfig, split: str | None) -> Any:
    """Returns a split, or all of them by name."""
    check_addresses(task)
    import datasets  # takes a second, and the configuration alone needs none of it

    counted = datasets.config.HF_UPDATE_DOWNLOAD_COUNTS
    try:
        path, options = _source(task)
        local = path in FORMATS or Path(path).exists()
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS &= not local  # to count a load it asks the hub
        with hub.quiet(datasets.logging), hub.patient(local):
            if any((Path(path) / name).exists() for name in SAVED):
                found = datasets.load_from_disk(path)
                splits = found if isinstance(found, dict) else {"train": found}
                return splits if split is None else splits[split]
            return datasets.load_dataset(path, split=split, **options)
    except TaskError:
        raise
    except Exception as error:  # the library raises a dozen kinds for "could not be loaded"
        raise TaskError(_unreachable(task, split, error)) from error
    finally:
        datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = counted


def _source(task: TaskConfig) -> tuple[str, dict[str, Any]]:
    """Returns what the library loads, and its options."""
    path = package_files.resolve(task.path)
    files = {n: package_files.resolve(f) for n, f in (task.data_files or {}).items()}
    keys = {name: f"task.data_files.{name}" for name in files}
    if Path(path).is_file():
        files, keys = {"train": path, **files}, {"train": "task.path", **keys}
        path = _format_of_path(Path(path))
    options: dict[str, Any] = {
        "name": task.subset,
        "data_dir": task.data_dir,
        "revision": task.revision,
        "data_files": files or None,
    }
    for name, file in files.items():
        if path in FORMATS and Path(file).is_file():
            _check_file(keys[name], Path(file), path)
            if path == "csv":  # words as NA and null stay text; only an empty cell is missing
                options |= {"sep": _delimiter(Path(file)), "keep_default_na": False}
                options["na_values"] = [""]
    return path, options


def _format_of_path(file: Path) -> str:
    """Returns the format of a file that ``task.path`` names."""
    found = _format(file)
    if found is None or (found == "csv" and file.suffix.lower() not in TEXT_ENDINGS):
        raise TaskError(
            f"task.path: {file} is none of csv, tsv, json, jsonl and parquet; save it as one of them"
        )
    return found


def _delimiter(file: Path) -> str:
    """Returns what separates the columns of a csv file's header: a comma, a tab or a semicolon."""
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        header = stream.readline()
    return max((",", "\t", ";"), key=header.count)


def require_column(rows: datasets.Dataset, column: str, key: str) -> None:
    """Makes sure that the data have a column; ``answers.text`` is the part ``text`` of the column ``answers``.

    Raises:
        TaskError: If they have not; names the key that asks for it.
    """
    first, _, part = column.partition(".")
    if column in rows.column_names or (first in rows.column_names and part):
        return
    columns = ", ".join(sorted(rows.column_names))
    raise TaskError(f"task.{key}: the data have no column {column!r}, only {columns}")


def values_of(rows: datasets.Dataset, column: str) -> list[Any]:
    """Returns a column's values, or those of a part of it."""
    first, _, part = column.partition(".")
    if column in rows.column_names or not part:
        return rows[column][:]
    return [None if value is None else value.get(part) for value in rows[first][:]]


def _format(file: Path) -> str | None:
    """Returns what a file's first bytes look like, one of `FORMATS`; None if they do not tell."""
    with file.open("rb") as stream:
        begin = stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    if begin.startswith(b"PAR1"):
        return "parquet"
    if begin.startswith((b"{", b"[")):
        return "json"
    return "csv" if b"\0" not in begin and not begin.startswith((b"\x1f\x8b", b"PK")) else None


def _check_file(key: str, file: Path, path: str) -> None:
    """Makes sure that a file is of the format that it is read as, and every line of a csv as long as its header."""
    if file.stat().st_size == 0:
        raise TaskError(f"{key}: {file} is empty")
    if (found := _format(file)) not in (path, None):
        raise TaskError(f"task.path={path}: {file} looks like {found}; use task.path={found}")
    if path != "parquet":
        _check_encoding(key, file)
    if path != "csv":
        return
    csv.field_size_limit(sys.maxsize)
    with file.open(encoding="utf-8-sig", newline="") as stream:
        lines = csv.reader(stream, delimiter=_delimiter(file))
        header = next(lines, [])
        width = len(header)
        rows = [(lines.line_num, len(row)) for row in lines if row]
    if not rows:
        raise TaskError(f"{key}: {file} has no rows below its header")
    if twice := [name for i, name in enumerate(header) if name in header[:i]]:
        raise TaskError(f"{key}: the header of {file} has {twice[0]!r} twice; rename one")
    other = [(line, columns) for line, columns in rows if columns != width]
    if other:
        line, columns = other[0]
        raise TaskError(
            f"{key}: {len(other)} rows of {file} do not have the {width} columns of its header (the first in line"
            f" {line}: {columns}); put texts that contain commas in quotes"
        )


def _check_encoding(key: str, file: Path) -> None:
    """Makes sure that a text file is UTF-8."""
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                raise TaskError(
                    f"{key}: line {number} of {file} is not UTF-8; save the file in that encoding"
                ) from None


def _broken_line(file: Path) -> str:
    """Returns which line of a jsonl file is not JSON; empty if all are, or if it is one JSON text."""
    lines = file.read_text(encoding="utf-8-sig").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            parsed = json.loads(line) if line.strip() else {}
        except ValueError as error:
            whole = lines[0].strip() in ("[", "{") or lines[0].startswith("[")
            return "" if whole else f"line {number} is not JSON: {error}"
        if not isinstance(parsed, dict):
            return "" if number == 1 else f"line {number} is no object"
    return ""


def _unreachable(task: TaskConfig, split: str | None, error: Exception) -> str:
    key = "task.data_files" if task.data_files else "task.path"
    part = task.subset or task.data_dir
    what = f"{task.path} ({part})" if part else task.path
    reason = hub.first_line(error)
    file = Path(package_files.resolve(task.path)) if not task.path.startswith("package:") else None
    if reason.startswith("Unknown split"):
        keys = ("train_split", "validation_split", "test_split")
        given = next((k for k in keys if getattr(task, k) == split), "train_split")
        return f"task.{given}={split}: {reason.split('. ')[-1]}, the splits of {what}"
    if file is not None and file.is_file():
        broken = _broken_line(file) if _format(file) == "json" else ""
        return f"{key}: {file} cannot be read ({broken or reason}); mend the file"
    named = "the splits" if split is None else f"split {split!r}"
    message = f"{key}: {named} of {what} cannot be loaded ({reason})"
    if not isinstance(error, OSError):  # there, but not as the configuration says
        return message
    if task.install:
        return f"{message}; `{task.install}` brings it"
    if task.data_files or Path(task.path).is_dir():
        return f"{message}; give the path of a copy that has it"
    command = f"hf download --repo-type dataset {task.path}"
    if task.revision:
        command += f" --revision {task.revision}"
    return (
        f"{message}; where the hub can be reached, `{command} --local-dir"
        f" {task.path.split('/')[-1]}` brings a copy for task.path=<local copy>"
    )
