#!/usr/bin/env bash
# LoRA over weights of 8 bits; ends with an adapter that peft loads, and with a model that transformers loads.
#
#   bash examples/int8_lora.sh [DIRECTORY] [STEPS]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/int8-lora}
steps=${2:-60}

python train.py \
  optimizer=bszo adapter=lora model.quantization=int8 optimizer.prior_std=1 lr=1e-2 steps="$steps" eval_every=$((steps / 4)) \
  task=classification task.path=examples/reviews.csv task.prompt='"{review} It was"' \
  'task.candidates=[" terrible"," great"]' task.validation_size=16 task.test_size=16 \
  out="$out/runs"
zo export "$out"/runs/bszo-* --out "$out/adapter"
zo export "$out"/runs/bszo-* --merge --out "$out/model"
python examples/classify.py "$out/model" "a warm and funny story"
