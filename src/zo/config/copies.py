"""Local copies of a commit of the hub, known by the digests that the hub gave for its files."""

from pathlib import Path

from zo.config import digests

COPIED = Path(".cache/huggingface/download")
"""Where ``hf download --local-dir`` notes the commit and the digest of each file."""


def commit_of(directory: Path) -> str | None:
    """Returns the commit that all files of a directory are those of; None if it is not known, or a file differs.

    The directory is what ``hf download --local-dir`` wrote, or a snapshot in the hub's cache.
    """
    files = list(digests.visible_files(directory)) if directory.is_dir() else []
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
    return commit if digests.of_hub_file(file, digest) == digest else None
