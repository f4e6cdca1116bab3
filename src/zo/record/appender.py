"""A file that grows record by record."""

import errno
import os
import weakref
from contextlib import suppress
from pathlib import Path


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
        """Waits until the file and its name are on the disk (fsync)."""
        os.fsync(self._fd)
        sync_directory(self.path.parent)

    def close(self) -> None:
        """Closes the file, as its garbage collection does; a second time does nothing."""
        self._close()


def sync_directory(directory: Path) -> None:
    """Waits until the names in a directory are on the disk (fsync)."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
