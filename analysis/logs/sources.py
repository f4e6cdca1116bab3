"""Where runs come from: directories with W&B run files, projects at W&B's cloud, or both mixed.

    frames = load(["out", "entity/project"])

A source is a directory if there is one of that name, else a project if it reads `entity/project`;
`wandb:entity/project` is a project in any case. A file that ends in `.parquet` holds committed runs
(`logs/committed.py`).
"""

import re
from collections.abc import Sequence
from pathlib import Path

from analysis.logs import cloud, committed, local
from analysis.logs.frames import Frames, merge
from analysis.logs.run_file import LogError

PROJECT = re.compile(r"(?:wandb:)?([\w.-]+/[\w.-]+)")
CACHE = Path(".cache/analysis")


def load(sources: Sequence[str | Path], *, cache_dir: Path | None = CACHE) -> Frames:
    """All runs that some sources have; see `analysis.logs.frames` for what comes back.

    Args:
        sources: directories, projects and files of committed runs.
        cache_dir: where run files and W&B's answers are kept as parquet, so that only what has changed is read again.
            None keeps everything in memory, for small sources.
    """
    directories, projects, files = split(sources)
    found = local.read(directories, cache_dir)
    if projects:
        found += cloud.read(projects, cache_dir)
    frames = merge(found)
    return committed.merge([frames, *map(committed.read, files)]) if files else frames


def split(sources: Sequence[str | Path]) -> tuple[list[Path], list[str], list[Path]]:
    """Which sources are directories, which projects, and which files of committed runs."""
    directories: list[Path] = []
    projects: list[str] = []
    files: list[Path] = []
    for source in sources:
        project = PROJECT.fullmatch(str(source))
        if Path(source).is_dir() and not str(source).startswith("wandb:"):
            directories.append(Path(source))
        elif Path(source).is_file() and Path(source).suffix == ".parquet":
            files.append(Path(source))
        elif project and not str(source).startswith("."):
            projects.append(project[1])
        else:
            raise LogError(f"there is no directory {source}")
    return directories, projects, files
