#!/usr/bin/env bash
# LoRA on a csv of your own; ends with a model that transformers loads.
#
#   bash examples/lora_csv.sh [DIRECTORY] [STEPS]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/lora-csv}
steps=${2:-100}

python train.py \
  optimizer=mezo adapter=lora lr=3e-2 steps="$steps" eval_every=$((steps / 4)) \
  task=rotten_tomatoes task.name=reviews task.data_files.train=examples/reviews.csv task.where=null \
  'task.labels=[negative,positive]' task.train_size=60 task.validation_size=30 task.test_size=30 \
  out="$out/runs"
python -m zo.export "$out"/runs/mezo-* --merge --out "$out/model"
python examples/classify.py "$out/model" "the kettle is worth every penny"
