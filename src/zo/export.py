"""A run's model as a directory that transformers loads: weights of a step, configuration, tokenizer.

    zo export out/bszo-0123456789ab --step best --out weights/

The weights come from a checkpoint where there is one of that step, and from the run's trajectory otherwise: base
weights, and from there every step made again without its forward passes.

Of a run with adapter=lora, ia3, prefix or prompt it is the adapter, as peft saves it, with the tokenizer. --merge
writes the whole model instead, with LoRA's or IA3's adapter merged into its weights.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from zo.extras import Trust, add_model, alias, missing, parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; see the module."""
    made = parser("export", __doc__)
    made.add_argument("run", type=Path, help="a run's directory")
    made.add_argument("--step", default="best", help="a number, best (default) or last")
    made.add_argument("--out", required=True, type=Path, metavar="DIR", help="made; must be empty")
    made.add_argument("--merge", action="store_true", help="merge an adapter into the weights")
    add_model(made)
    made.add_argument("--trust", action=Trust)
    args = vars(made.parse_args(argv))
    try:
        from zo.run.results.export import UNUSABLE, export  # here, so that --help needs nothing
    except ModuleNotFoundError as error:
        return missing("zo export", error)
    try:
        export(**args)
    except UNUSABLE as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(alias("export", main))
