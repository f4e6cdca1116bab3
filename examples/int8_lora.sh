#!/usr/bin/env bash
# LoRA over weights of 8 bits; ends with an adapter that peft loads, and with a model that transformers loads.
#
#   bash examples/int8_lora.sh [DIRECTORY] [STEPS]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/int8-lora}
steps=${2:-60}

python train.py \
  optimizer=bszo adapter=lora model.quantization=int8 lr=3e-1 steps="$steps" eval_every=$((steps / 4)) \
  task=rotten_tomatoes task.name=reviews task.data_files.train=examples/reviews.csv task.where=null \
  'task.labels=[negative,positive]' task.train_size=60 task.validation_size=30 task.test_size=30 \
  out="$out/runs"
python -m zo.export "$out"/runs/bszo-* --out "$out/adapter"
python -m zo.export "$out"/runs/bszo-* --merge --out "$out/model"
python examples/classify.py "$out/model" "the kettle is worth every penny"
