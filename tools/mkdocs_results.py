"""MkDocs hook: brings the pages and pictures of results/ that the documentation links to into the site."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).resolve().parents[1] / "results"
SHOWN = ("paper", "measured")
SUFFIXES = (".md", ".png", ".csv", ".json")


def on_files(files: Files, config: Any) -> Files:
    """Adds the committed files of results/ under `data/`."""
    for folder in SHOWN:
        for path in sorted((RESULTS / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                uri = "data/" + path.relative_to(RESULTS).as_posix()
                files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Points links to results/, as they are in the repository, to their place in the site."""
    up = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"({up}../results/", f"({up}data/")
