#!/usr/bin/env bash
# Runs what needs a GPU, step by step: bash loadtest/gpu.sh STEP... with the Python of an environment that has the
# package, its tests' packages and a torch for CUDA. Each step takes less than ten minutes.
#
#   PYTHON=python OUT=loadtest/results bash loadtest/gpu.sh tests bench http accuracy
#
#   tests      the tests that are skipped without a GPU
#   bench      the engine beside torch, torch.compile and ONNX Runtime, as OUT/gpu.md
#   http       requests/s with 1, 4 and 8 fronts, as OUT/gpu_http.md
#   accuracy   the bundled models in bf16 beside int8 on the CPU, on the data in DATA, as OUT/gpu_accuracy.md
#
# DEVICE=cpu tries the steps without a GPU; the figures then say nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} out=${OUT:-loadtest/results} data=${DATA:-../shared/data} device=${DEVICE:-cuda}
mkdir -p "$out"

run_tests() {
  "$python" -m pytest -q tests/models/ragged tests/engines/test_torch.py tests/benchmark/test_device.py
}

run_bench() {
  if [[ $device == cpu ]]; then
    "$python" -m pytest -q tests/benchmark/test_device.py
  else
    "$python" -m swiftlet_serve.service bench --device "$device" --seconds "${SECONDS_A_CASE:-8}" --out "$out" --name gpu
  fi
}

run_http() {
  "$python" -m loadtest.front_scaling --engine torch --model mobilebert-sst2 --fronts 1 4 8 --connections 512 \
    --rounds "${ROUNDS:-3}" | tee "$out/gpu_http.md"
}

run_accuracy() {
  local -A files=([mobilebert-sst2]=sst2/dev.tsv [albert-sst2]=sst2/dev.tsv [albert-cola]=cola/dev.tsv
    [mobilebert-qa]=squad/squad-v1.1.eval.json [albert-qa]=squad/squad-v1.1.eval.json)
  for model in "${!files[@]}"; do
    for engine in torch native; do
      echo "$model, $engine: $("$python" -m swiftlet_serve.service evaluate "$model" "$data/${files[$model]}" \
        --engine "$engine" ${LIMIT:+--limit "$LIMIT"} 2> /dev/null | tr '\n' ' ')"
    done
  done | tee "$out/gpu_accuracy.md"
}

(($#)) || set -- tests bench http accuracy
for step; do
  "run_$step"
done
