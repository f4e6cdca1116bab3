"""Rows of a local csv, tsv, json, jsonl or parquet file, with each cell as in the file: no type is guessed."""

from __future__ import annotations

import csv
import functools
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from zo.tasks.config import TaskError
from zo.tasks.labels import is_number, plain, same
from zo.tasks.templates import FIELDS

ENDINGS = {".csv": "csv", ".tsv": "csv", ".tab": "csv"}
ENDINGS |= {".json": "json", ".jsonl": "json", ".parquet": "parquet"}

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")  # A number as json writes it
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,999}")
BLANK = re.compile(r"[ \t\r\n]*")
SUMMED = 5  # Fewest rows above a total
TOTAL = re.compile(
    r"(?i)\s*((grand |sub-?)?total|totals|sum|summe|gesamt|insgesamt|somme|suma|totale|all|alle|Σ)[:.]?\s*"
)
"""A cell that says that its row is a total."""
QUOTED = re.compile(r'"(?:[^"]|"")*"')

NARROW = {
    "float": np.float32,
    "float32": np.float32,
    "halffloat": np.float16,
    "float16": np.float16,
}
"""Names of pyarrow's and of the library `datasets` -> type of numbers that a 64-bit float shows with foreign digits."""

UTF16 = (b"\xff\xfe", b"\xfe\xff")  # Byte order marks
CACHED = 1 << 26  # Largest text file whose rows are cached, bytes: a task reads them twice
UNNAMED = "Unnamed: "  # Prefix of the name of an unnamed csv column, often a row number
END = "\x1e"  # Sentinel row at the end, which becomes part of another row if a quote is not closed
Record: TypeAlias = tuple[int, list[str]]  # A row's first line, and its cells


class Written(float):
    """A number that keeps its text, as 1.50 or 1e10. Pickling keeps only the number."""

    def __init__(self, text: str):
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)


@dataclass(frozen=True)
class Rows:
    """Rows of a split."""

    names: Sequence[str]  # Of the columns
    indices: np.ndarray  # Of the rows in their file, from 0
    # Function from a column's name and row numbers to the values
    cells: Callable[[str, np.ndarray], list[Any]]
    # Column of class numbers -> names of the classes, if the data have them
    classes: Mapping[str, list[str]] = field(default_factory=dict)
    notes: Sequence[str] = ()  # Sentences about the file
    nothing: str | None = None  # Text of a cell without a value in a template; None: an error
    source: str = "the data"  # Its file, or its split and data set, as messages name it
    parts: Sequence[Rows] = ()  # The rows of each file, if there are several

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, indices: np.ndarray) -> Rows:
        """Returns some of the rows."""
        return replace(self, indices=self.indices[indices])

    def with_classes_of(self, other: Rows) -> Rows:
        """Returns the rows with other rows' class numbers, or else names. Raises TaskError if the classes differ."""
        new: dict[str, dict[Any, Any]] = {}
        for name in self.classes.keys() - other.classes.keys():
            if any(isinstance(v, str) for v in (other.values(name) if name in other.names else ())):
                new[name] = dict(enumerate(self.classes[name]))
        for name in other.classes.keys() - self.classes.keys():
            self._check_numbers(name, other)
            new[name] = {of: number for number, of in enumerate(other.classes[name])}
        for name in self.classes.keys() & other.classes.keys():
            here, there = self.classes[name], other.classes[name]
            if sorted(here) != sorted(there):
                raise TaskError(
                    f"task.path: {other.source} and {self.source} name the classes of {name!r} differently:"
                    f" {', '.join(there)} and {', '.join(here)}; give files with the same classes"
                )
            if here != there:
                new[name] = {number: there.index(of) for number, of in enumerate(here)}
        if not new:
            return self

        def cells(name: str, at: np.ndarray) -> list[Any]:
            values = self.cells(name, at)
            of = new.get(name, {})
            return [of.get(v, v) if isinstance(v, int | str) else v for v in values]

        kept = {name: of for name, of in self.classes.items() if name not in new}
        return replace(self, cells=cells, classes={**kept, **other.classes})

    def _check_numbers(self, name: str, other: Rows) -> None:
        """Raises TaskError if numbers here may be places of other rows' classes, or their names."""
        called = other.classes[name]
        if name not in self.names or all(
            not is_number(of) or same(of) == i for i, of in enumerate(called)
        ):
            return
        if any(type(v) is int for v in self.values(name)):
            raise TaskError(
                f"task.label: {name!r} has numbers in {self.source}, and classes called {', '.join(called)} in"
                f" {other.source}: nothing says whether 1 is a name or the second class; write names as texts, in json"
                " or parquet"
            )

    def column(self, name: str) -> str | None:
        """Returns the column that a name, or the beginning of a name, refers to; None if there is none."""
        return self._place(name)[0]

    def require(self, column: str, key: str) -> None:
        """Raises TaskError without a column, to which `key` refers; `answers.text` is the part `text` of `answers`."""
        if self.column(column) is not None:
            return
        if column.rpartition(":")[0] in self.names:
            raise TaskError(f"task.{key}: {{{column}}} names none of {', '.join(FIELDS)}")
        there = ", ".join(sorted(self.names))
        raise TaskError(f"task.{key}: the data have no column {column!r}, only {there}")

    def values(self, column: str) -> list[Any]:
        """Returns the values of a column or of a part of it; None for rows without the part."""
        name, parts = self._place(column)
        found = self.cells(name or column, self.indices)
        for part in parts:
            found = [of.get(part) if isinstance(of, Mapping) else None for of in found]
        return found

    def _place(self, column: str) -> tuple[str | None, list[str]]:
        """Returns the column at the beginning of a name, and the parts that follow."""
        parts = column.split(".")
        for n in range(len(parts), 0, -1):
            if (name := ".".join(parts[:n])) in self.names:
                return name, parts[n:]
        return None, []


def _whole(names: Sequence[str], count: int, column: Callable[[str], Sequence[Any]]) -> Rows:
    """Returns rows from columns of equal length, which `column` returns whole."""
    cells = lambda name, at: [column(name)[i] for i in at.tolist()]  # noqa: E731
    return Rows(names, np.arange(count), cells)


def of_data_set(data: Any) -> Rows:
    """Returns the rows of a split that the library `datasets` has read, whatever format was set for its readers."""
    data = data.with_format(None)
    named = {name: getattr(of, "names", None) for name, of in data.features.items()}
    classes = {name: of for name, of in named.items() if of}
    types = {name: getattr(of, "dtype", "") for name, of in data.features.items()}
    cells = lambda name, at: _shortest(data.select(at)[name][:], types[name])  # noqa: E731
    return Rows(data.column_names, np.arange(len(data)), cells, classes)


def _shortest(values: Sequence[Any], dtype: str) -> list[Any]:
    """Returns the values; those of a type below 64 bits as the shortest decimal number that stands for them."""
    if (narrow := NARROW.get(dtype)) is None:
        return list(values)
    return [None if v is None else float(str(narrow(v))) for v in values]


def _distinct(names: Sequence[str], file: Path, what: str = "the header") -> None:
    """Raises ValueError if a column's name stands twice."""
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"{what} of {file} has {twice[0]!r} twice; rename one")


def _check_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], file: Path) -> None:
    """Raises ValueError if a row repeats the names of the columns, or is the total of the rows above it."""
    header = [plain(name) for name in names]
    above: list[Sequence[Any]] = []
    # A word that earlier rows have in the same column is no total's.
    words = set[tuple[int, str]]()
    for i, cells in enumerate(rows):
        at = f"row {i} of {file}, counted from 0,"
        if len(header) > 1 and all(map(lambda n, of: plain(of) == n, header, cells)):
            raise ValueError(f"{at} repeats the names of the columns; take it out")
        found = {(k, str(of)) for k, of in enumerate(cells) if TOTAL.fullmatch(str(of))}
        totals = len(above) >= SUMMED and not found <= words
        words |= found
        if totals and any(map(_is_total, cells, zip(*above, strict=True))):
            raise ValueError(f"{at} has the total of the rows above it; take it out")
        above.append(cells)


def _is_total(cell: Any, above: Sequence[Any]) -> bool:
    """Returns whether a number is the sum or the count of those above it, and none of them.

    A count says nothing below numbers that are all different, as rows are numbered.
    """
    if not NUMBER.fullmatch(str(cell)):
        return False
    known = [float(str(of)) for of in above if NUMBER.fullmatch(str(of))]
    counted = len({*known}) < max(1, len(known))
    value = round(float(str(cell)), 6)
    return value not in known and value in (round(sum(known), 6), len(above) if counted else None)


def joined(parts: Sequence[Rows], files: Sequence[Path]) -> Rows:
    """Returns the rows of several files, one after another. Raises TaskError if their columns differ."""
    first = parts[0]
    if len(parts) == 1:
        return first
    for rows, file in zip(parts, files, strict=True):
        if other := {*rows.names} ^ {*first.names}:
            raise TaskError(
                f"task.path: {files[0]} and {file} differ in the columns {', '.join(sorted(other))}; give files with"
                " equal columns"
            )
    parts = [rows.with_classes_of(first) for rows in parts]
    column = functools.cache(lambda name: [v for rows in parts for v in rows.values(name)])
    notes = [note for rows in parts for note in rows.notes]
    whole = _whole(first.names, sum(map(len, parts)), column)
    whole = replace(whole, classes=first.classes, notes=notes, nothing=first.nothing)
    return replace(whole, source=f"{files[0]} and {len(files) - 1} more", parts=parts)


def read(file: Path, key: str, given: str | None = None) -> Rows:
    """Returns the rows of a file that the task's `key` names, in the `given` format or that of its first bytes.

    Raises:
        TaskError: If the file cannot be read as that format; names the key.
        OSError: If it cannot be opened.
    """
    kind = _format(file, key, given)
    try:
        if kind == "parquet":
            rows = _parquet(file)
        else:
            content = file.read_bytes()
            cached = len(content) <= CACHED
            rows = (_of_text if cached else _of_text.__wrapped__)(content, kind, file)
    except ValueError as error:
        raise TaskError(f"{key}: {error}") from error
    if not len(rows):
        below = " below its header" if kind == "csv" else ""
        raise TaskError(f"{key}: {file} has no rows{below}")
    return replace(rows, source=str(file))


def _format(file: Path, key: str, given: str | None) -> str:
    """Returns the format of a file; its first bytes must be of the format that is given."""
    with file.open("rb") as stream:
        begin = stream.read(4096)
    if not begin:
        raise TaskError(f"{key}: {file} is empty")
    if begin.startswith(b"version https://git-lfs"):
        raise TaskError(f"{key}: {file} is a pointer of Git LFS; `git lfs pull` gets the file")
    halves = [begin[i::2].count(0) for i in (0, 1)]
    marked = begin.startswith(UTF16)
    if not marked and min(halves) == 0 and 4 * max(halves) > len(begin):
        what = "looks like UTF-16 without its byte order mark"
        raise TaskError(f"{key}: {file} {what}; save it as UTF-8")
    if marked:
        begin = begin.decode("utf-16", errors="ignore").encode()
    begin = begin.lstrip(b"\xef\xbb\xbf \t\r\n")
    found = ""
    if begin.startswith(b"PAR1"):
        found = "parquet"
    elif begin.startswith((b"{", b"[")):
        found = "json"
    elif b"\0" not in begin and not begin.startswith((b"\x1f\x8b", b"PK")):
        found = "csv"
    if given is not None and found not in (given, ""):
        raise TaskError(f"task.path={given}: {file} looks like {found}; use task.path={found}")
    if given is None and (not found or (found == "csv" and file.suffix.lower() not in ENDINGS)):
        what = "is none of csv, tsv, json, jsonl and parquet"
        raise TaskError(f"{key}: {file} {what}; save it as one of them")
    return given or found


@functools.lru_cache(maxsize=2)  # by content
def _of_text(content: bytes, kind: str, file: Path) -> Rows:
    """Returns the rows of a csv or json file; raises ValueError with the reason."""
    encoding = "utf-16" if content.startswith(UTF16) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        where = f"line {line} of {file}"
        raise ValueError(f"{where} is not UTF-8; save the file in that encoding") from None
    text = text.replace("\n\ufeff", "\n")  # of files that were put together
    return _csv(text, file) if kind == "csv" else _json(text, file)


def _parquet(file: Path) -> Rows:
    """Returns the rows of a parquet file; columns are read on demand."""
    import pyarrow
    from pyarrow import compute, parquet

    try:
        opened = parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{file} cannot be read ({error}); write it again") from None
    schema = opened.schema_arrow
    _distinct(schema.names, file, "the schema")
    about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = about.get("info", {}).get("features", {})
    named = {n: of["names"] for n, of in features.items() if isinstance(of, dict) and "names" in of}
    column = functools.cache(lambda name: opened.read(columns=[name]).column(name))

    def cells(name: str, at: np.ndarray) -> list[Any]:
        values = column(name).take(pyarrow.array(at)).to_pylist()
        return _shortest(values, str(schema.field(name).type))

    texts = [of.name for of in schema if str(of.type) in ("string", "large_string")]
    said = (compute.match_substring_regex(column(of), f"^{TOTAL.pattern}$") for of in texts)
    if len(texts) == len(schema) or any(compute.any(of).as_py() for of in said):
        every = [column(name).to_pylist() for name in schema.names]
        _check_rows(schema.names, zip(*every, strict=True), file)
    return Rows(schema.names, np.arange(opened.metadata.num_rows), cells, named)


def _json(text: str, file: Path) -> Rows:
    """Returns the rows of a json array or of consecutive objects; a missing key is None."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            _distinct([name for name, _ in pairs], file, "an object")
        return found

    decoder = json.JSONDecoder(
        parse_float=Written, parse_constant=float, object_pairs_hook=object_of
    )
    text = text.strip(" \t\r\n")
    rows: list[Any] = []
    at = 0
    try:
        if text.startswith("["):
            rows, at = decoder.decode(text), len(text)
        while at < len(text):
            row, at = decoder.raw_decode(text, at)
            at = BLANK.match(text, at).end()  # type: ignore[union-attr]
            rows.append(row)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: line {error.lineno} is not JSON: {error.msg}") from None
    halves = "\\ud" in text.lower()
    for i, row in enumerate(rows):
        at_row = f"row {i} of {file}, counted from 0,"
        if not isinstance(row, dict):
            raise ValueError(f"{at_row} is not an object; give an object for each row")
        if halves and re.search("[\ud800-\udfff]", json.dumps(row, ensure_ascii=False)):
            raise ValueError(f"{at_row} has an invalid character (a lone surrogate)")
    names = dict.fromkeys(name for row in rows for name in row)
    _check_rows([*names], ([row.get(name) for name in names] for row in rows), file)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return _whole([*names], len(rows), columns.__getitem__)


def _csv(text: str, file: Path) -> Rows:
    """Returns the rows of a csv or tsv file. A column with only numbers has numbers that keep their text."""
    given = re.match(r"sep=(.)(\r\n|\r|\n)", text)  # a line of Excel's
    body = text[given.end() :] if given else text
    delimiter = given[1] if given else _delimiter(body, file)
    try:
        if delimiter == "\t":
            records = _tsv(body)
        else:  # strict: text after a closing quote is an error, as of a backslash, which csv has no use for
            records = _records(body, delimiter=delimiter, strict=True)
    except csv.Error as error:
        raise ValueError(f"{file}: {error}") from None
    rows = [cells for _, cells in records]
    header = rows.pop(0) if rows else []
    names = [name or f"{UNNAMED}{i}" for i, name in enumerate(header)]
    _distinct(names, file)
    if other := [(line, cells) for line, cells in records if len(cells) != len(names)]:
        line, cells = other[0]
        commas = {",": "commas", "\t": "tabs"}.get(delimiter, f"{delimiter!r}")
        remedy = f"put texts that contain {commas} or line breaks in quotes"
        if "#" in (header[0][:1], cells[0][:1]):
            remedy = "take lines that begin with # out"
        raise ValueError(
            f"{len(other)} rows of {file} do not have the {len(names)} columns of its header (the first in line"
            f" {line + bool(given)}: {len(cells)}); {remedy}"
        )
    _check_rows(names, rows, file)
    columns = dict(zip(names, map(_numbers, zip(*rows, strict=True)), strict=False))
    lines = sum(1 for line in io.StringIO(body, newline="") if line.strip("\r\n")) - 1
    said = f"{file}: {lines} lines below the header are {len(rows)} rows; texts in quotes have line breaks"
    found = _whole(names, len(rows), columns.__getitem__)
    return replace(found, notes=[said] * (lines != len(rows)), nothing="")


def _delimiter(text: str, file: Path) -> str:
    """Returns the delimiter of a header: a comma, a tab, a semicolon or a bar."""
    header = re.split(r"[\r\n]", text.lstrip("\r\n"), maxsplit=1)[:1]
    known = "\t,;|" if file.suffix.lower() in (".tsv", ".tab") else ",\t;|"
    return max(known, key=lambda mark: max(map(len, csv.reader(header, delimiter=mark)), default=0))


def _tsv(text: str) -> list[Record]:
    """Returns the records of a tsv. Quotes are plain characters unless each cell that begins with one ends with one."""
    plain = _records(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    marked = [cell for _, cells in plain for cell in cells if cell.startswith('"')]
    header = plain[0][1] if plain else []
    closed = any(all(map(QUOTED.fullmatch, of)) for of in (marked, header))
    if not marked or (_even(plain) and not closed):
        return plain
    try:
        quoted = _records(text, delimiter="\t", strict=True)
    except csv.Error:
        return plain
    return quoted if _even(quoted) else plain


def _even(records: Sequence[Record]) -> bool:
    """Returns whether all records have equally many cells."""
    return len({len(cells) for _, cells in records}) == 1


def _records(text: str, **options: Any) -> list[Record]:
    """Returns the non-empty records; options are those of csv.reader. Raises csv.Error with the reason."""
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(f"{text}\n{END}", newline=""), **options)
    found, line = [], 1
    try:
        for cells in reader:
            if cells:
                found.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        if "end of data" not in str(error):
            raise csv.Error(
                f"line {line} has text after a closing quote; put the whole cell in quotes, and within quotes write two"
                " quotes for one, not a backslash and one"
            ) from None
        found.append((line, []))
    line, last = found.pop()
    if last != [END]:
        remedy = "close it, or write it as two quotes"
        raise csv.Error(f"the quote in line {line} is not closed; {remedy}")
    return found


def _numbers(cells: Sequence[str]) -> Sequence[Any]:
    """Returns a column's numbers if every non-empty cell is a json number, else the texts."""
    distinct = {*cells} - {""}
    if not all(map(NUMBER.fullmatch, distinct)):
        return [cell or None for cell in cells]
    numbers = {cell: int(cell) if WHOLE.fullmatch(cell) else Written(cell) for cell in distinct}
    return [*map(numbers.get, cells)]
