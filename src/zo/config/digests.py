"""Digests of local files and directories, equal for equal content wherever it lies; commits of copies of the hub."""

import glob
import hashlib
import os
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import xxhash

ALGORITHM = "xxh3_128"
KEPT_ON_DISK = 1 << 26
"""Bytes from which a file's digest is kept in the cache directory, so that weights are read once per change."""

SETTLED_S = 2.0
"""Age from which size and time of change identify a file's content: a clock may tick more slowly than files change."""


def of_address(address: str) -> str | None:
    """Returns the digest of a local file, directory or glob pattern; None if nothing local has this address."""
    path = Path(address).expanduser()
    if path.is_file():
        return f"{ALGORITHM}:{_of_file(path)}"
    if path.is_dir():
        return of_files(path, visible_files(path))
    matching = [Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file()]
    return of_files(path.parent, matching) if matching else None


def of_files(root: Path, files: Iterable[Path]) -> str:
    """Returns the digest of some files' names, relative to `root`, and contents."""
    digest = xxhash.xxh3_128()
    for name, path in sorted((os.path.relpath(path, root), path) for path in files):
        digest.update(f"{name} {_of_file(path)};".encode())
    return f"{ALGORITHM}:{digest.hexdigest()}"


def visible_files(root: Path) -> Iterable[Path]:
    """Yields the files below a directory, without hidden ones and those in hidden directories."""
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def of_tree(directory: Path) -> str:
    """Returns git's hash of a directory of Python files; empty if there is none in it."""
    entries = []
    for path in directory.iterdir():
        tree = path.is_dir()
        found = of_tree(path) if tree else read(path, "git") if path.suffix == ".py" else ""
        # git sorts a directory with its slash
        mode, end = ("40000", "/") if tree else ("100644", "")
        if found:
            entries.append((f"{path.name}{end}", f"{mode} {path.name}\0".encode(), found))
    content = b"".join(head + bytes.fromhex(found) for _, head, found in sorted(entries))
    return hashlib.sha1(b"tree %d\0" % len(content) + content).hexdigest() if entries else ""


def git(directory: Path, *arguments: str) -> str:
    """Returns what git prints of a directory; nothing where there is no git or no commit, or after 10 seconds."""
    command, quiet = ["git", "-C", str(directory), *arguments], subprocess.DEVNULL
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(command, stderr=quiet, encoding="utf-8", timeout=10)
    return ""


def _of_file(path: Path, algorithm: str = ALGORITHM) -> str:
    """Returns the hexadecimal digest of a file's content; one that has not changed is not read again."""
    status = path.stat()
    if time.time() - max(status.st_mtime, status.st_ctime) <= SETTLED_S:
        return read(path, algorithm)
    changed = status.st_mtime_ns, status.st_ctime_ns  # the first can be set, by touch or an archive
    return _of_settled(path.resolve(), status.st_ino, status.st_size, changed, algorithm)


@cache
def _of_settled(
    path: Path, inode: int, size: int, changed_ns: tuple[int, int], algorithm: str
) -> str:
    """Returns the digest of a file that stays as it is; a large one's is kept for other processes."""
    if size < KEPT_ON_DISK:
        return read(path, algorithm)
    named = (str(path), inode, size, *changed_ns) + (algorithm,) * (algorithm != ALGORITHM)
    key = xxhash.xxh3_128_hexdigest(repr(named).encode())
    root = Path(os.environ.get("ZO_CACHE") or Path.home() / ".cache" / "zo")
    kept, partial = root / "digests" / key, root / "digests" / f".{key}.{os.getpid()}"
    with suppress(OSError):
        if len(text := kept.read_text(encoding="utf-8")) >= 32:
            return text
    digest = read(path, algorithm)
    with suppress(OSError):  # the cache directory cannot be written
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(digest, encoding="utf-8")
        partial.replace(kept)
    return digest


def read(path: Path, algorithm: str = ALGORITHM) -> str:
    """Returns the hexadecimal digest of a file's content, which is read."""
    digest: Any = xxhash.xxh3_128()
    if algorithm != ALGORITHM:
        digest = hashlib.new("sha256" if algorithm == "sha256" else "sha1")
    if algorithm == "git":
        digest.update(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as file:
        return str(hashlib.file_digest(file, lambda: digest).hexdigest())


COPIED = Path(".cache/huggingface/download")
"""Where ``hf download --local-dir`` notes the commit and the digest of each file."""


def commit_of(directory: Path) -> str | None:
    """Returns the commit that all files of a directory are those of; None if it is not known, or a file differs.

    The directory is what ``hf download --local-dir`` wrote, or a snapshot in the hub's cache.
    """
    files = list(visible_files(directory)) if directory.is_dir() else []
    commits = {_commit(directory, file) for file in files}
    return commits.pop() if len(commits) == 1 else None


def _commit(directory: Path, file: Path) -> str | None:
    """Returns the commit that a file was copied from; None if there is none, or the file has changed since."""
    noted = directory / COPIED / f"{file.relative_to(directory)}.metadata"
    snapshot = directory.resolve()
    if noted.is_file():
        commit, digest = [*noted.read_text(encoding="utf-8").splitlines(), "", ""][:2]
    elif snapshot.parent.name == "snapshots" and file.is_symlink():
        commit, digest = snapshot.name, file.resolve().name
    else:
        return None
    algorithm = "sha256" if len(digest) == 64 else "git"  # the hub's of large and of small files
    return commit if _of_file(file, algorithm) == digest else None
