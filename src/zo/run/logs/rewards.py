"""What a run logs of rewards: numbers in its rows, texts in texts.jsonl, and what is new on the screen."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zo.distributed.processes import Processes
from zo.lm.scoring.texts import TextScorer
from zo.record.appender import Appender
from zo.rewards.tally import Tally
from zo.run.store.rows import TEXTS, Row

SHOWN, PROMPT, TEXT = 3, 30, 60  # Rows of the table of sample texts, and characters of its columns
MOST_LINES = 10_000  # Lines that one attempt writes: all failures are counted in metrics.jsonl


class TextLog:
    """Adds lines to `texts.jsonl`; those that are there of steps later than `after` are removed."""

    def __init__(self, directory: Path, after: int):
        self._path, self._after, self._lines = directory / TEXTS, after, 0
        self._file = Appender(self._path, self._kept()) if self._path.exists() else None

    def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds a line per row."""
        if not rows or self._lines >= MOST_LINES:
            return
        if self._file is None:
            self._file = Appender(self._path)
        self._lines += len(rows)
        lines = [json.dumps({"step": step, **row}, default=str) for row in rows]
        self._file.write(("\n".join(lines) + "\n").encode())

    def _kept(self) -> int:
        """Returns the bytes of the file up to the first line of a later step."""
        kept = 0
        for line in self._path.read_bytes().splitlines(keepends=True):
            try:
                if json.loads(line)["step"] > self._after:
                    break
            except (ValueError, KeyError, TypeError):  # torn
                break
            kept += len(line)
        return kept


def sample_lines(samples: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields an evaluation's first texts as a table: reward, end of the prompt, beginning of the text."""
    if samples:
        yield f"{'reward':>8}  {'prompt':{PROMPT}}  text"
    for row in samples[:SHOWN]:
        prompt, text = (" ".join(str(row[key]).split()) for key in ("prompt", "text"))
        reward = "–" if row["reward"] is None else f"{row['reward']:.3g}"
        yield f"{reward:>8}  {prompt[-PROMPT:]:{PROMPT}}  {text[:TEXT]}"


@dataclass
class RewardLog:
    """Collects what a scorer of texts tallies."""

    scorer: TextScorer  # Of the run's steps
    processes: Processes  # That divide them
    texts: TextLog | None  # Where texts are written; None on processes that write nothing
    say: Callable[[str], None]  # Prints a line
    said: set[str] = field(default_factory=set)  # What is printed once, and was

    def of_step(self, step: int, losses: Sequence[float]) -> Row:
        """Returns what the step's row has of rewards."""
        tally = Tally()
        for of_one in self.processes.exchange(self.scorer.tally):
            tally.add(of_one)
        self._note(step, tally)
        return tally.row(losses)

    def of_evaluation(self, step: int, split: str) -> None:
        """Writes the first texts of an evaluation, and those that could not be rated."""
        tally, samples = self.scorer.tally, self.scorer.samples
        self._note(step, tally)
        self._write(step, [{"split": split, **row} for row in samples])
        if split == "validation":
            for line in sample_lines(samples):
                self.say(line)
        self.scorer.tally = Tally()

    def _note(self, step: int, tally: Tally) -> None:
        """Writes failures, and says the first of each kind."""
        self._write(step, tally.events)
        for event in tally.events:
            self._once(
                f"{event['function']}: {event['error']}",
                f"step {step}: {event['function']}: {event['said']} (row {event['row']}); {TEXTS} has the text,"
                " reward/errors their number",
            )
        if tally.unrated:
            said = f"{tally.unrated} of {tally.texts} texts are rated by no function and left out of the mean"
            self._once("unrated", f"step {step}: {said}")
        if tally.printed:
            first = tally.printed.splitlines()[0]
            self._once("printed", f"step {step}: a function printed {first!r}")
        if tally.counts["left"]:
            self._once("left", f"step {step}: processes that a function left behind were ended")
        if tally.counts["dropped"]:
            said = "log_metric: values that are no finite numbers are left out; reward/dropped has their number"
            self._once("dropped", f"step {step}: {said}")

    def _once(self, what: str, line: str) -> None:
        if what not in self.said:
            self.said.add(what)
            self.say(line)

    def _write(self, step: int, rows: Sequence[dict[str, Any]]) -> None:
        if self.texts is not None:
            self.texts.write(step, rows)
