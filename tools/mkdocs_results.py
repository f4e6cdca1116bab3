"""MkDocs hook: adds README.md, as the first page, and the pages and pictures of results/ to the site."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
SHOWN = ("paper", "measured")
SUFFIXES = (".md", ".png", ".svg", ".csv", ".json")


def on_files(files: Files, config: Any) -> Files:
    """Adds README.md as `index.md`, and the committed files of results/ under `data/`."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    readme = readme.replace("](docs/", "](").replace("](results/", "](data/")
    outside = r"\[([^][]+)\]\((?!data/|#|https?:|[\w/-]+\.md)[^)]*\)"  # files that the site lacks
    files.append(File.generated(config, "index.md", content=re.sub(outside, r"\1", readme)))
    for folder in SHOWN:
        for path in sorted((RESULTS / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                uri = "data/" + path.relative_to(RESULTS).as_posix()
                files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Points links to README.md and results/, as they are in the repository, to their place in the site."""
    up = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"({up}../results/", f"({up}data/").replace(
        f"({up}../README.md", f"({up}index.md"
    )
