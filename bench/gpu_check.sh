#!/usr/bin/env bash
# Checks a CUDA machine in under 8 minutes: bench/gpu_check.sh [FILE]
# Writes the markdown table to FILE as well. PYTHON names the interpreter. Exit code 3: there is no CUDA device.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
[ -x .venv/bin/python ] && python="${PYTHON:-.venv/bin/python}"
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
if [ $# -gt 0 ]; then
	timeout 460 "$python" -m bench.gpu | tee "$1"
else
	exec timeout 460 "$python" -m bench.gpu
fi
