"""Pages in Markdown, out of the templates in pages/."""

from pathlib import Path
from typing import Any

import jinja2

from analysis.report.table import markdown

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
    keep_trailing_newline=True,
    trim_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.filters["markdown"] = markdown


def page(name: str, **values: Any) -> str:
    """The text of a page; a `Table` in it is written by the filter `markdown`."""
    return _TEMPLATES.get_template(f"{name}.md").render(**values)
