#!/usr/bin/env bash
# Installs a wheel in a new environment, away from the repository: the library alone, and then the suite and a short run of `zo train`.
set -euo pipefail
wheel=$(realpath "$1") constraints=$(realpath constraints.txt)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
python3 -m venv env
pip() { env/bin/python -m pip install --quiet --disable-pip-version-check -c "$constraints" "$@"; }
pip "$wheel"
env/bin/python - <<'LINES'
import torch
import zo

model, x = torch.nn.Linear(4, 1), torch.randn(16, 4)
optimizer = zo.BSZO(model, lr=1e-2, k=2, prior_std=1.0)
losses = [optimizer.step(lambda: model(x).square().mean()) for _ in range(50)]
assert losses[-1] < losses[0], losses
print(f"zo {zo.__version__} without extras: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
LINES
env/bin/zo train && { echo "zo train without the suite must say what to install" >&2; exit 1; }
pip "$wheel[suite,reviews,fast]"
env/bin/zo train steps=4 eval_every=2 task.test_size=20 task.validation_size=20 tracking.mode=offline
env/bin/zo train -m optimizer=mezo,lozo steps=4 eval_every=2 task.test_size=20 task.validation_size=20 tracking.mode=offline
env/bin/zo tables
env/bin/zo show
env/bin/zo status sweep=table4 | tail -3
env/bin/zo tables table4 | grep "30 of 30 numbers"  # the committed runs, which the wheel holds
ls results/local
