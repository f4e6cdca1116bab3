"""Writes that are whole or not at all, whenever the process, the disk or the machine gives up."""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zo.record.appender import sync_directory

CHECK = "crc"  # Last key of a sealed line


def replace(path: Path, content: str | bytes, writer: str = "") -> None:
    """Writes a file: afterwards, and after a crash, it has the old content or the new one; text is encoded as UTF-8.

    `writer` tells this process from others, where several may write the file at once.
    """
    partial = path.with_name(f".{path.name}{writer}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
    partial.replace(path)
    sync_directory(path.parent)


def replace_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file like `replace`."""
    replace(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file; nothing if there is none that can be read, or it is torn."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def seal(content: Mapping[str, Any]) -> bytes:
    """Returns a line of JSON with the CRC-32 of its own text as its last value."""
    text = json.dumps(content)
    return f'{text[:-1]}, "{CHECK}": {zlib.crc32(text.encode())}}}\n'.encode()


def unseal(line: bytes) -> dict[str, Any] | None:
    """Returns what `seal` made a line of; None if the line was torn or altered."""
    try:
        content = json.loads(line)
    except ValueError:
        return None
    if not isinstance(content, dict) or content.pop(CHECK, None) is None:
        return None
    return content if seal(content) == line else None
