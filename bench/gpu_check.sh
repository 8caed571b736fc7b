#!/usr/bin/env bash
# Checks a CUDA machine in under 14 minutes: bench/gpu_check.sh [FILE]
# First a markdown table, then the numerical contract; both are written to FILE as well. What the compiled kernels use
# (registers, spills, shared memory) is written to FILE.kernels.json, without a FILE to gpu.kernels.json. PYTHON names
# the interpreter. Exit code 3: there is no CUDA device.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
[ -x .venv/bin/python ] && python="${PYTHON:-.venv/bin/python}"
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
export CONTRACT_DEVICE=cuda CONTRACT_KERNELS="$(realpath "${1:-gpu}").kernels.json"
check() {
	local status=0
	timeout 460 "$python" -m bench.gpu || status=$?
	[ "$status" -eq 3 ] && return 3
	printf '\n'
	timeout 360 "$python" -m pytest -q -p no:cacheprovider tests/contract || status=1
	return "$status"
}
if [ $# -gt 0 ]; then check | tee "$1"; else check; fi
