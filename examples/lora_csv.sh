#!/usr/bin/env bash
# LoRA on a csv of your own; ends with a model that transformers loads.
#
#   bash examples/lora_csv.sh [DIRECTORY] [STEPS]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/lora-csv}
steps=${2:-100}

python train.py \
  optimizer=mezo adapter=lora lr=1e-2 steps="$steps" eval_every=$((steps / 4)) \
  task=classification task.path=examples/reviews.csv task.prompt='"{review} It was"' \
  'task.candidates=[" terrible"," great"]' task.validation_size=16 task.test_size=16 \
  out="$out/runs"
zo export "$out"/runs/mezo-* --merge --out "$out/model"
python examples/classify.py "$out/model" "a warm and funny story"
