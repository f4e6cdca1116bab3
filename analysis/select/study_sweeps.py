"""Which sweeps make up a study, by their names."""

from analysis.select import sweep_cells

PREFIX = "study_"
MAIN, ROUNDINGS, M_IS_K, M_IS_K_PLUS_1, NOISE = "", "_roundings", "_5a", "_5b", "_5c"
EPS = "_eps"
PARTS = (MAIN, ROUNDINGS, M_IS_K, M_IS_K_PLUS_1, NOISE, EPS)
"""Endings of the names of the sweeps that make up a study."""
MORE = "_more"
"""Ending of a sweep with learning rates beyond the grid of the sweep whose name stands before it; read as part of
it."""


def names() -> list[str]:
    """The studies that conf/sweep has."""
    sweeps = [name for name in sweep_cells.sweep_names() if name.startswith(PREFIX)]
    return [name for name in sweeps if not part_of(name)]


def sweeps_of(study: str) -> list[str]:
    """The sweeps of a study that conf/sweep has."""
    wanted = [study + part + more for part in PARTS for more in ("", MORE)]
    return [name for name in wanted if name in sweep_cells.sweep_names()]


def part_of(sweep: str) -> str:
    """The ending by which a sweep belongs to a study beside its main sweep; empty if it does not."""
    if not sweep.startswith(PREFIX):
        return MAIN
    return next((part for part in (*PARTS[1:], MORE) if sweep.endswith(part)), MAIN)
