"""What is made of runs when they have ended: tables, figures, pages, the report; each a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEAST_S = 60.0
"""All of them together have at least this long, also where the time is up."""


COMPOSE = """
import os
os.nice(10)
from analysis import expected, sources
expected.cells(expected.sweep_names(), sources.CACHE)
"""
"""Lists the cells of all sweeps, which is kept: two minutes of a core that the analysis at the end has no time for."""


@contextmanager
def composing() -> Iterator[None]:
    """Lists the cells of all sweeps in a process of its own while the body runs."""
    child = subprocess.Popen(
        [sys.executable, "-c", COMPOSE],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # what is wrong, the analysis says
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        yield
    finally:
        child.kill()
        child.wait()


def analyses(sweeps: Sequence[str], out: Path, results: Path) -> list[list[str]]:
    """Returns the commands behind `python -m`, most important first.

    Args:
        sweeps: Names of the sweeps that have a run that ended.
        out: The runs.
        results: Where tables and figures go.
    """
    places = ["--runs", str(out), "--results", str(results)]
    studies = [sweep for sweep in sweeps if sweep in ("study_tiny", "study_smollm2")]
    found = [["analysis.report.efficiency", *places], ["analysis.report.paper_tables", *places]]
    found += [["analysis.report.study", sweep, *places] for sweep in studies]
    drawn = [sweep for sweep in sweeps if sweep in studies or not sweep.startswith("study_")]
    if drawn:  # what belongs to a study is on its own page
        found.append(["analysis.report.figures", *drawn, *places])
    found.append(["analysis.report.manifest", *places])
    found.append(["analysis.report.page", *places])
    return found


def make(sweeps: Sequence[str], out: Path, results: Path, until: float) -> list[str]:
    """Makes them, one after another.

    Args:
        sweeps: See `analyses`.
        out: See there.
        results: See there.
        until: By `time.monotonic()`; what is not done by then is given up.

    Returns:
        A sentence for each that was not made.
    """
    problems = []
    until = max(until, time.monotonic() + LEAST_S)
    for name, *arguments in analyses(sweeps, out, results):
        command = [sys.executable, "-m", name, *arguments]
        typed = " ".join(["python", *command[1:]])
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=max(0.1, until - time.monotonic()),
                start_new_session=True,  # Ctrl-C once does not reach it
            )
        except subprocess.TimeoutExpired:
            problems.append(f"no time left for {name}: `{typed}` makes it")
            continue
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            problems.append(f"{name}: {said[-1]}")
    return problems
