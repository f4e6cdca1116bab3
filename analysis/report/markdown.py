"""What is written: pages in Markdown, out of the templates in pages/, and tables as csv."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from analysis.report.table import escape, markdown

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
    keep_trailing_newline=True,
    trim_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.filters |= {"markdown": markdown, "cell": lambda cell: escape(str(cell))}


def page(name: str, **values: Any) -> str:
    """The text of a page; a `Table` in it is written by the filter `markdown`."""
    return _TEMPLATES.get_template(f"{name}.md").render(**values)


def csv(frame: pd.DataFrame, digits: str | None = None) -> str:
    """The text of a csv file; `digits`: the format of its numbers, None for all that they have."""
    return frame.to_csv(index=False, lineterminator="\n", float_format=digits)


def write_texts(directory: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files into a directory, which is made; name -> content; the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8", newline="\n")
    return [directory / name for name in texts]
