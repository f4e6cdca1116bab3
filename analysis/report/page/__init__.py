"""One page of everything: results/report.html, self-contained.

    python -m analysis.report.page --runs out

| module | what it makes |
|---|---|
| command_line.py | the command |
| content.py | the page's sections, from the frames, the paper's numbers and the expected cells |
| tables.py | a table of the page: cells that sort, filter and know their runs |
| svg.py | a panel of a figure as inline SVG that follows the page's colours |
| markup.py | elements and escaping |
| page.html, page.css, page.js | the page's frame, looks and behaviour; no library |
"""
