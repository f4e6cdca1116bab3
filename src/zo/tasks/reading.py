"""A task's files or hub repository -> the rows of a split, once it is known that they can be meant."""

from __future__ import annotations

import csv
import glob
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zo.tasks import hub, package_files
from zo.tasks.config import TaskConfig, TaskError

if TYPE_CHECKING:
    import datasets

FORMATS = ("csv", "json", "parquet")
"""Values of ``task.path`` that say how ``task.data_files`` are read."""


def read_split(task: TaskConfig, split: str) -> tuple[datasets.Dataset, np.ndarray]:
    """Returns the rows of a split that ``task.where`` keeps, and their numbers in the file, from 0.

    Raises:
        TaskError: If they are out of reach, or a file is not of the format that it is read as.
    """
    check_addresses(task)
    import datasets  # takes a second, and the configuration alone needs none of it

    try:
        path = package_files.resolve(task.path)
        if Path(path).is_file():
            use = f"task.path={_format(Path(path))} task.data_files.train={task.path}"
            raise TaskError(f"task.path: {task.path} is a file; use {use}")
        files = {
            name: package_files.resolve(file) for name, file in (task.data_files or {}).items()
        }
        for name, file in files.items():
            if path in FORMATS and Path(file).is_file():
                _check_file(f"task.data_files.{name}", Path(file), path)
        with _quiet(), hub.patient(path in FORMATS or Path(path).exists()):
            rows = datasets.load_dataset(
                path,
                task.subset,
                data_dir=task.data_dir,
                revision=task.revision,
                data_files=files or None,
                split=split,
            )
    except TaskError:
        raise
    except Exception as error:  # the library raises a dozen kinds for "could not be loaded"
        raise TaskError(_unreachable(task, split, error)) from error
    keep = np.ones(len(rows), dtype=bool)
    for column, value in (task.where or {}).items():
        require_column(rows, column, "where")
        keep &= np.array([entry == value for entry in rows[column][:]], dtype=bool)
    numbers = np.flatnonzero(keep)
    return (rows if keep.all() else rows.select(numbers)), numbers


def check_addresses(task: TaskConfig) -> None:
    """Makes sure that paths, and files of pip packages, are there. Neither asks the hub nor imports datasets.

    Raises:
        TaskError: If one is not; names its key.
    """
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


def require_column(rows: datasets.Dataset, column: str, key: str) -> None:
    """Makes sure that the data have a column.

    Raises:
        TaskError: If they have not; names the key that asks for it.
    """
    if column not in rows.column_names:
        columns = ", ".join(sorted(rows.column_names))
        raise TaskError(f"task.{key}: the data have no column {column!r}, only {columns}")


def _format(file: Path) -> str | None:
    """Returns what a file's first bytes look like, one of `FORMATS`; None if they do not tell."""
    with file.open("rb") as stream:
        begin = stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    if begin.startswith(b"PAR1"):
        return "parquet"
    if begin.startswith((b"{", b"[")):
        return "json"
    return "csv" if b"\0" not in begin and not begin.startswith(b"\x1f\x8b") else None


def _check_file(key: str, file: Path, path: str) -> None:
    """Makes sure that a file is of the format that it is read as, and every line of a csv as long as its header.

    Raises:
        TaskError: If it is not; names the key, and the first line that is longer or shorter.
    """
    if file.stat().st_size == 0:
        raise TaskError(f"{key}: {file} is empty")
    if (found := _format(file)) not in (path, None):
        raise TaskError(f"task.path={path}: {file} looks like {found}; use task.path={found}")
    if path != "csv":
        return
    csv.field_size_limit(sys.maxsize)
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        lines = csv.reader(stream)
        width = len(next(lines, []))
        rows = [(lines.line_num, len(row)) for row in lines if row]
    if not rows:
        raise TaskError(f"{key}: {file} has no rows below its header")
    other = [(line, columns) for line, columns in rows if columns != width]
    if other:
        line, columns = other[0]
        raise TaskError(
            f"{key}: {len(other)} rows of {file} do not have the {width} columns of its header (the first in line"
            f" {line}: {columns}); put texts that contain commas in quotes"
        )


def _unreachable(task: TaskConfig, split: str, error: Exception) -> str:
    key = "task.data_files" if task.data_files else "task.path"
    part = task.subset or task.data_dir
    what = f"{task.path} ({part})" if part else task.path
    reason = hub.first_line(error)
    message = f"{key}: split {split!r} of {what} cannot be loaded ({reason})"
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


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no chatter from the library, as it was before on exit."""
    import datasets

    verbosity = datasets.logging.get_verbosity()
    bars = not datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if bars:
            datasets.enable_progress_bars()
