"""Every figure of a sweep: png, pdf, and the csv behind it.

    python -m analysis.report.figures quickstart --runs out

A figure is a `Drawing` (drawing.py): panels that draw themselves onto axes, a legend, the numbers, and
notes that say what is missing and how long histories were thinned. The page (analysis.report.page) draws the
same panels one by one.
"""

from analysis.report.figures.loss import loss_curves, loss_figure, smoothing_window, write_figures

__all__ = ["loss_curves", "loss_figure", "smoothing_window", "write_figures"]
