#!/usr/bin/env bash
# Runs what needs a GPU, step by step: bash loadtest/gpu.sh STEP... with the Python of an environment that has the
# package, its tests' packages and a torch for CUDA. Each step takes less than ten minutes.
#
#   PYTHON=python OUT=loadtest/results bash loadtest/gpu.sh tests bench http server accuracy train
#
#   tests      the tests that are skipped without a GPU
#   bench      the engine beside torch, torch.compile and ONNX Runtime, as OUT/gpu.md
#   http       requests/s with 1, 4 and 8 fronts, as OUT/gpu_http.md (needs wrk)
#   server     latency, joules, switches of a model and too little memory, as OUT/gpu_server.md
#   accuracy   the bundled models in bf16, fp16, int8 and FP8 beside fp32, on the data in DATA, as OUT/gpu_accuracy.md
#   train      tokens/s and share of the peak of training steps, as OUT/gpu_training.md
#
# DEVICE=cpu tries the steps without a GPU, on few and small inputs: it takes a few minutes, and the figures say nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} out=${OUT:-loadtest/results} data=${DATA:-../shared/data} device=${DEVICE:-cuda}
if [[ $device == cpu ]]; then
  out=${OUT:-$(mktemp -d)}
fi
mkdir -p "$out"

run_tests() {
  local chosen=()
  [[ $device != cpu ]] || chosen=(-k 'cuda or gpu or graph')
  "$python" -m pytest -q tests/models/ragged tests/models/training/loop/test_{acceleration,trainer}.py \
    tests/engines/test_torch.py tests/benchmark/test_device.py "${chosen[@]}"
}

run_bench() {
  if [[ $device == cpu ]]; then
    "$python" -c "from pathlib import Path; import torch; from swiftlet_serve.service.benchmark import device, measure
measure.ROUND_S, measure.MIN_ROUNDS, device.MIXED_ROWS, device.MIXED_LENGTHS = 0.0, 2, 1, [8, 16]
print(device.text(device.bench_device(torch.device('cpu'), ['minilm'], Path('runs/bench'), 0.0, print, [(1, 16)], 256)))"
  else
    "$python" -m swiftlet_serve.service bench --device "$device" --seconds "${SECONDS_A_CASE:-8}" --out "$out" --name gpu
  fi
}

run_http() {
  command -v wrk > /dev/null || { echo 'The step http needs wrk. Install it, or leave the step out.' >&2 && return 1; }
  local options=(--fronts 1 4 8 --connections 512 --rounds "${ROUNDS:-3}")
  [[ $device != cpu ]] || options=(--fronts 1 2 --connections 8 --rounds 1 --seconds 1)
  "$python" -m loadtest.front_scaling --engine torch --model mobilebert-sst2 "${options[@]}" | tee "$out/gpu_http.md"
}

run_server() {
  "$python" -m loadtest.gpu_server --device "$device" --out "$out/gpu_server.md"
}

run_accuracy() {
  local options=()
  [[ -z ${LIMIT:-} ]] || options=(--limit "$LIMIT")
  [[ $device != cpu ]] || options=(--models mobilebert-sst2 albert-qa --limit "${LIMIT:-10}")
  "$python" -m loadtest.gpu_accuracy --device "$device" --data "$data" "${options[@]}" | tee "$out/gpu_accuracy.md"
}

run_train() {
  local options=(--steps "${STEPS:-100}")
  [[ $device != cpu ]] || options=(--models albert-sst2 --steps 40 --batch-size 2 --ways 'bf16, padded' bf16)
  "$python" -m loadtest.training_speed --device "$device" --data "$data" "${options[@]}" | tee "$out/gpu_training.md"
}

(($#)) || set -- tests bench http server accuracy train
for step; do
  "run_$step"
done
