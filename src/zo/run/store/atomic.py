"""Writes that are whole or not at all, whenever the process, the disk or the machine gives up."""

import errno
import json
import os
import weakref
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

CHECK = "crc"
"""Last key of a sealed line."""


class Appender:
    """A file that grows record by record, straight to the operating system: a killed process loses none.

    Args:
        path: Made if it does not exist.
        keep: Bytes of it to keep; what comes after is cut off. None keeps all.
    """

    def __init__(self, path: Path, keep: int | None = None):
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._close = weakref.finalize(self, os.close, self._fd)
        if keep is not None and os.fstat(self._fd).st_size > keep:
            os.ftruncate(self._fd, keep)

    def write(self, record: bytes) -> None:
        """Adds a record.

        Raises:
            OSError: If there is no room for all of it. Part of it may be there where it cannot be cut off again, and
                has to be recognised as such.
        """
        before = os.fstat(self._fd).st_size
        try:
            if os.write(self._fd, record) < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._fd, before)
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def sync(self) -> None:
        """Waits until the disk has all of it, and its name."""
        os.fsync(self._fd)
        sync_directory(self.path.parent)

    def close(self) -> None:
        """Closes the file, as its garbage collection does; a second time does nothing."""
        self._close()


def replace(path: Path, content: str | bytes, writer: str = "") -> None:
    """Writes a file: afterwards, and after a crash, it has the old content or the new one.

    Args:
        path: The file.
        content: Of the file; text is encoded as UTF-8.
        writer: Tells this process from others, where several may write the file at once.
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


def sync_directory(directory: Path) -> None:
    """Waits until the disk has the names in a directory."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
