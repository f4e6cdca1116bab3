"""Writes: whole or not at all, also where there is no room."""

import errno
import subprocess
import sys

import pytest

from zo.run.atomic import Appender


@pytest.mark.parametrize(("keep", "left"), [(None, b"0123"), (2, b"01"), (0, b""), (9, b"0123")])
def test_records_follow_what_is_kept_and_each_is_there_at_once(tmp_path, keep, left):
    path = tmp_path / "file"
    path.write_bytes(b"0123")
    file = Appender(path, keep)
    for written in (b"one", b"two"):
        file.write(written)
        left += written
        assert path.read_bytes() == left
    file.close()
    file.close()


FILL = """
import resource, signal, sys
from pathlib import Path
from zo.run.atomic import Appender
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
file = Appender(Path(sys.argv[1]))
file.write(b"12345678")
for _ in range(2):  # there is room for half of the first, and for nothing of the second
    try:
        file.write(b"abcd")
    except OSError as error:
        print(error.errno, error.filename)
"""


@pytest.mark.process
def test_a_record_that_does_not_fit_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "file"
    done = subprocess.run([sys.executable, "-c", FILL, path], capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{errno.ENOSPC} {path}", f"{errno.EFBIG} {path}"]
    assert path.read_bytes() == b"12345678ab"
