#!/usr/bin/env bash
# A reward that has no gradient: the length of a text and a keyword. Over four validation texts, which are training texts, too,
# its mean rises from -1.00 to 0.35 at step 45 and is 0.25 at step 60.
#
#   bash examples/reward.sh [DIRECTORY] [STEPS]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/reward}
steps=${2:-60}

# ε is large: a small one changes no text, and equal rewards give no slope.
common=(
  task=reward task.path=examples/prompts.jsonl objective.function=examples/rules.py:score task.max_new_tokens=12
  precision.restore=merged out="$out/runs"
)
python train.py "${common[@]}" optimizer=zero_shot
python train.py "${common[@]}" optimizer=mezo optimizer.eps=3e-2 lr=1e-3 steps="$steps" eval_every=$((steps / 4))
zo export "$out"/runs/mezo-* --out "$out/model"
python examples/write.py "$out/model" "the plot is"
