#!/usr/bin/env bash
# Resolve the dependencies for what users have: without this machine's index settings, cap on versions and local wheels.
#   tools/resolve.sh lock [OPTION...]  write constraints.txt; a version that fits stays. --upgrade, or --upgrade-package torch, takes newer ones
#   tools/resolve.sh check             constraints.txt has a solution for each Python and platform, with and without the extra dev
#   tools/resolve.sh lowest            print the oldest versions that pyproject.toml allows, but for torch: that of constraints.txt
set -euo pipefail
cd "$(dirname "$0")/.."
export MACOSX_DEPLOYMENT_TARGET=14.0 # torch has no wheels for older ones
unset $(env | grep -oE '^(PIP|UV)_[A-Z_]+' | grep -v _CERT)

uv() {
  local uv=build/uv/bin/uv
  [ -x $uv ] || { "${PYTHON:-python3}" -m venv build/uv && build/uv/bin/python -m pip install --quiet --disable-pip-version-check uv; }
  $uv --no-config pip compile --quiet --no-emit-index-url "$@" pyproject.toml
}

lock() {
  uv --universal --python-version 3.11 --fork-strategy fewest --all-extras --no-annotate \
    --custom-compile-command "make lock" --output-file constraints.txt "$@"
}

check() {
  uv --python-version 3.11 --output-file /dev/null # makes uv's environment once, before four resolutions at a time
  printf '%s\n' {3.11,3.12,3.13,3.14}" "{x86_64-manylinux_2_28,aarch64-manylinux_2_28,aarch64-apple-darwin} |
    xargs -P 4 -L 1 tools/resolve.sh solve || { echo "constraints.txt has conflicts: call make lock" >&2; exit 1; }
}

lowest() { # torch's oldest is resolved, too, and not printed: its wheel is large
  local arguments=(--resolution lowest-direct --python-version 3.11 --no-annotate --extra suite,reviews,fast,test)
  uv "${arguments[@]}" --output-file /dev/null
  uv "${arguments[@]}" --constraints <(grep -E '^torch==' constraints.txt)
}

solve() { # PYTHON PLATFORM: the first resolution fills uv's cache. What make setup and make test install comes as wheels, or is Python alone
  local arguments extras=suite,reviews,fast wheels="--offline --only-binary :all: --no-binary rouge-score --no-binary antlr4-python3-runtime"
  arguments=(--python-version "$1" --python-platform "$2" --constraints constraints.txt --output-file /dev/null --extra)
  uv "${arguments[@]}" $extras,dev && uv "${arguments[@]}" $extras,test $wheels && uv "${arguments[@]}" $extras $wheels ||
    { echo "conflict: Python $1, $2"; return 1; }
  echo "resolved: Python $1, $2, with and without dev"
}

"$@"
