"""Studies: the paper's comparisons made whole at a small scale, and which of its claims hold there.

A study is a sweep `<study>` (methods, precisions, learning rates, seeds) and those beside it that have its name and one
of the endings of `analysis.select.study_runs.PARTS`. What is written is listed in docs/analysis.md.
"""
