"""Predictions for the rows of a file, as CSV: label and probability, or the text that follows a prompt.

    zo predict out/bszo-0123456789ab reviews.csv --out predicted.csv
    zo predict weights/ reviews.csv
    zo predict out/bszo-0123456789ab --rest 2000 --without 1

The model is that of a run's step, or what zo export wrote: weights or an adapter. Prompt, candidates,
precision and quantised base are those of the run's evaluations. The file is csv, tsv, json, jsonl or parquet and has
the columns of the run's task. If it has labels, accuracy, F1 and the confusion matrix are printed, too.

--rest takes rows of the task's own training split that neither trained nor evaluated the run; --without 1 also leaves
out those of runs with task.train_set_seed=1, by which a rate was tuned, say.

The probability is that of the predicted label: the softmax over the candidates' scores.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from zo.extras import Trust, add_model, alias, parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser("predict", __doc__)
    words = "a run's directory, or an exported one"
    made.add_argument("source", type=Path, metavar="RUN_OR_MODEL", help=words)
    words = "rows to predict; labels may be missing"
    made.add_argument("file", type=Path, nargs="?", help=words)
    words = "rows of the task that the run did not see, instead of a file"
    made.add_argument("--rest", type=int, default=0, metavar="N", help=words)
    words = "values of task.train_set_seed whose rows are left out of these, too"
    made.add_argument("--without", type=int, nargs="+", default=[], metavar="SEED", help=words)
    made.add_argument("--out", type=Path, metavar="FILE", help="instead of standard output")
    made.add_argument("--step", default="best", help="of a run: a number, best (default) or last")
    add_model(made)
    made.add_argument("--trust", action=Trust)
    args = made.parse_args(argv)
    from zo.run.results.predict import UNUSABLE, predict  # here, so that --help answers at once

    try:
        text, notes = predict(**vars(args))
    except UNUSABLE as error:
        print(error, file=sys.stderr)
        return 2
    if args.out is None:
        print(text, end="")
    for note in notes:
        print(note, file=sys.stdout if args.out else sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(alias("predict", main))
