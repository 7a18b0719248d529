#!/usr/bin/env bash
# Measures what needs a GPU or many cores, step by step, in the order of the steps' worth: bash loadtest/device.sh STEP...
# Results go to OUT as soon as they are there, so that a machine that is available for minutes only loses one step. A
# step that fails, or takes longer than its limit, does not stop the next one. No step begins or runs after TOTAL_S.
#
#   PYTHON=python OUT=loadtest/results TOTAL_S=540 bash loadtest/device.sh lone fronts bench server engines tests
#
#   pack       in CARRIED (runs/device): this checkout with its kernels and two bundled models, wheels, OpenVINO's parts
#              for CPUs, and wrk, for a machine with a torch for CUDA, Python PACK_FOR (3.12) and no network
#   install    what CARRIED has, and this checkout
#   prepare    the networks of the next two steps, exported and quantised
#   lone       milliseconds of a lone sequence on 1 to 16 cores, by engine, as OUT/lone_calls.md, and OUT/machine.txt
#   engines    CPU engines side by side on one core, as OUT/engines_device.md
#   fronts     requests/s with 1, 2 and 4 fronts beside FastAPI with OpenVINO, as OUT/fronts_*.md (needs wrk)
#   bench      the torch engine on the GPU beside torch, torch.compile and ONNX Runtime, as OUT/gpu.md
#   server     a server around the GPU: rates, latencies, energy, switches of models, too little memory, as OUT/gpu_server.md
#   tests      the tests that are skipped without a GPU
#   accuracy   the bundled models in bf16, fp16, int8 and FP8 beside fp32, on the data in DATA, as OUT/gpu_accuracy.md
#   train      tokens/s and share of the peak of training steps, as OUT/gpu_training.md
#
# The environment of PYTHON has the package, its tests' packages and a torch for CUDA. Where there is no network, the
# steps `pack` here, and `install` there, bring what is missing:
#
#   bash loadtest/device.sh pack                                         # here
#   tar xJf runs/device/source.tar.xz                                    # there, in an empty folder beside runs
#   TOTAL_S=540 bash loadtest/device.sh install prepare lone fronts bench server engines tests
#
# DEVICE=cpu tries the steps without a GPU, on few and small inputs, in a minute or two: the figures say nothing.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} data=${DATA:-../shared/data} device=${DEVICE:-cuda} runs=${RUNS:-runs/bench}
carried=$(realpath -m "${CARRIED:-runs/device}") words=bert-base-uncased-vocab.txt
vocabulary=$data/$words
[[ -f $vocabulary ]] || vocabulary=$carried/$words
if [[ $device == cpu ]]; then
  out=${OUT:-$(mktemp -d)}
else
  out=${OUT:-loadtest/results}
fi
mkdir -p "$out"
run() { "$python" -m "$@"; }
on_cpu() { [[ $device == cpu ]]; }

run_pack() {
  local packages=(annotated-types fastapi httptools pydantic pydantic-core pydantic-settings python-dotenv starlette
    typing-inspection uvicorn openvino nncf) models=models/swiftlet_models/bundled scratch
  scratch=$(mktemp -d) && mkdir -p "$carried" && rm -f "$carried"/*.{whl,tar.xz} || return
  grep -ohE '^[a-z0-9.-]+==[^ ]+' docker/cpu.lock > "$scratch/versions"
  grep -ohE '(openvino|uvicorn)==[0-9.]+' pyproject.toml | sort -u >> "$scratch/versions"
  "$python" -m pip download --quiet --no-deps --only-binary :all: --python-version "${PACK_FOR:-3.12}" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --dest "$carried" \
    --constraint "$scratch/versions" "${packages[@]}" || return
  # Of OpenVINO, a CPU needs half.
  "$python" -m zipfile -e "$carried"/openvino-*.whl "$scratch/site" && rm "$carried"/openvino-*.whl || return
  find "$scratch/site" \( -name '*_[gn]pu_plugin.so' -o -name cache.json -o -path '*/include/*' -o -path '*/cmake/*' \
    -o -regex '.*_\(tensorflow\|tensorflow_lite\|pytorch\|paddle\|jax\|gguf\)_frontend.*' \) -type f -delete
  cp -r "$("$python" -c 'from importlib.metadata import files
print(next(file.locate().parent for file in files("swiftlet-serve") if file.name == "METADATA"))')" "$scratch/site" || return
  tar cJf "$carried/packages.tar.xz" -C "$scratch/site" . || return
  git describe --always --dirty --tags > "$scratch/REVISION"
  { git ls-files -- . ":!$models" && git ls-files "$models"/{mobilebert-sst2,albert-qa} && ls {service,models}/*/native/*.so; } |
    tar cJf "$carried/source.tar.xz" --transform "s,^REVISION$,service/swiftlet_serve/REVISION," \
      --files-from - -C "$scratch" REVISION || return
  [[ ! -f $data/$words ]] || cp -f "$data/$words" "$carried"
  ! command -v wrk > /dev/null || cp -f "$(command -v wrk)" "$(ldconfig -p | sed -n 's/.*libluajit-5.1.so.2 .*=> //p;T;q')" "$carried"
  rm -r "$scratch" && du -sh "$carried"
}

run_install() {
  local site
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  [[ ! -f $carried/packages.tar.xz ]] || tar xJf "$carried/packages.tar.xz" -C "$site" || return
  "$python" -m pip install --quiet --no-index --no-deps "$carried"/*.whl || return
  printf '%s\n' "$PWD/service" "$PWD/models" > "$site/swiftlet.pth"
}

run_prepare() {
  on_cpu && return
  local shape networks
  run loadtest.lone_calls --prepare --runs "$runs" &
  networks=$!
  for shape in minilm mobilebert; do
    run loadtest.released_shapes "$runs" --shape "$shape" --only classify \
      --vocabulary "$vocabulary" || return
  done
  # The peer's files too, so that its start takes seconds.
  "$python" -c "import sys; from loadtest.baseline_app import create_app; from loadtest.baseline_fastapi_openvino import load
create_app(sys.argv[1:], load)" "$runs"/{minilm,mobilebert}-released-classify || return
  wait "$networks"
}

run_lone() {
  local options=()
  lscpu > "$out/machine.txt"
  ! on_cpu || options=(--shapes minilm --engines native openvino --cores 1 2 --tokens 16 --seconds 0)
  run loadtest.lone_calls --runs "$runs" --seconds "${SECONDS_A_CASE:-2}" "${options[@]}" | tee "$out/lone_calls.md"
}

run_engines() {
  local options=(--shape mobilebert --shape albert --engine native --engine native_bf16 --engine openvino --engine ort_stock)
  ! on_cpu || options=(--shape minilm --engine native --engine native_bf16)
  run swiftlet_serve bench --quick --seconds "${SECONDS_A_CASE:-2}" --out "$out" --name engines_device --runs "$runs" \
    "${options[@]}"
}

run_fronts() {
  command -v wrk > /dev/null || { echo 'The step fronts needs wrk. Install it, or leave the step out.' >&2 && return 1; }
  if on_cpu; then
    run loadtest.front_scaling --fronts 1 2 --connections 4 --rounds 1 --seconds 1 | tee "$out/fronts_echo.md"
    return
  fi
  local options=(--connections ${CONNECTIONS:-1 4 16 64} --rounds "${ROUNDS:-3}" --seconds "${SECONDS_A_CASE:-2}" --cores "$(nproc)") shape
  run loadtest.front_scaling "${options[@]}" --fronts 1 2 4 8 | tee "$out/fronts_echo.md"
  for shape in mobilebert minilm; do
    run loadtest.front_scaling "${options[@]}" --engine native --model "$runs/$shape-released-classify" --peers 1 4 8 |
      tee "$out/fronts_$shape.md"
  done
}

run_bench() {
  if on_cpu; then
    "$python" -c "from pathlib import Path; import torch; from swiftlet_serve.benchmark import device, measure
measure.ROUND_S, measure.MIN_ROUNDS, device.MIXED_ROWS, device.MIXED_LENGTHS = 0.0, 2, 1, [8, 16]
print(device.text(device.bench_device(torch.device('cpu'), ['minilm'], Path('$runs'), 0.0, print, [(1, 16)], 256)))"
  else
    run swiftlet_serve bench --device "$device" --seconds "${SECONDS_A_CASE:-8}" --out "$out" --name gpu --runs "$runs"
  fi
}

run_server() {
  run loadtest.gpu_server --device "$device" --out "$out/gpu_server.md"
}

run_tests() {
  local chosen=()
  ! on_cpu || chosen=(-k 'cuda or gpu or graph')
  run pytest -q tests/models/ragged tests/training/loop/test_{acceleration,trainer}.py \
    tests/engines/test_torch.py tests/benchmark/test_device.py "${chosen[@]}"
}

run_accuracy() {
  local options=()
  [[ -z ${LIMIT:-} ]] || options=(--limit "$LIMIT")
  ! on_cpu || options=(--models mobilebert-sst2 albert-qa --limit "${LIMIT:-10}")
  run loadtest.gpu_accuracy --device "$device" --data "$data" "${options[@]}" | tee "$out/gpu_accuracy.md"
}

run_train() {
  local options=(--steps "${STEPS:-100}")
  ! on_cpu || options=(--models albert-sst2 --steps 40 --batch-size 2 --ways 'bf16, padded' bf16)
  run loadtest.training_speed --device "$device" --data "$data" "${options[@]}" | tee "$out/gpu_training.md"
}

export -f on_cpu run
export python data device runs out carried words vocabulary
export PATH=$PATH:$carried LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$carried  # wrk
(($#)) || set -- prepare lone fronts bench server engines tests accuracy train
failed=()
for step; do
  began=$SECONDS
  export -f "run_$step" || exit 2
  left_s=$((${TOTAL_S:-1000000} - began)) limit_s=${LIMIT_S:-600}
  ((left_s > 0)) || { failed+=("$step (no time left)") && continue; }
  # A step in a shell of its own can be ended with all that it started.
  timeout --kill-after 5 "$((left_s < limit_s ? left_s : limit_s))" bash -c "set -o pipefail; run_$step" || failed+=("$step")
  echo "step $step: $((SECONDS - began)) s" >&2
done
((${#failed[@]} == 0)) || { echo "These steps failed: ${failed[*]}" >&2 && exit 1; }
