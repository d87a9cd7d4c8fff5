#!/usr/bin/env bash
# Serve the trained planner behind an OpenAI-compatible endpoint (`swift deploy`): adapter or merged weights.
#
# Hardware: one GPU of 24 GiB for the 4B model (vLLM, the extra `gpu`). Without a GPU transformers serves on the CPU,
# which is meant for the demo's nano model. Listens on this machine alone: --host 0.0.0.0 opens it, and then a key must
# be set.
#
#   bash run_planner_server.sh --adapters runs/grpo-NAME/best        a LoRA adapter on PLANNER_MODEL
#   PLANNER_MODEL=runs/merged bash run_planner_server.sh             weights merged by scripts/online/merge_adapter.py
#   DRY_RUN=1 bash run_planner_server.sh --adapters runs/NAME/best   judge and print the command, run nothing
#   CUDA_VISIBLE_DEVICES=5 bash run_planner_server.sh ...            that GPU, the first of all otherwise
#   CUDA_VISIBLE_DEVICES=4,5 bash run_planner_server.sh ... --vllm_data_parallel_size 2
#
# POST /v1/chat/completions and GET /v1/models take the key as a bearer, and so does GET /manifest, the manifest of the
# run that made the model. GET /health takes none: 200 while the model answers. Nothing else is served.
#
# What follows the script's name goes to `swift deploy` unchanged and wins over the defaults below. A preflight refuses
# a busy port (swift would silently take the next one) and an open server without a key. Requests are not logged.
# Output also goes to runs/server-<time>/server.log. Ctrl-C or SIGTERM ends all processes.
#
# Variables (all optional):
#   PLANNER_MODEL           model folder or hub id, as in training     (Qwen/Qwen3-4B-Instruct-2507)
#   PLANNER_SERVER_PORT     port                                       (8010)
#   PLANNER_SERVER_API_KEY  key that clients must send                 (none)
#   PLANNER_PROMPT          prompt of training, to compare             (full)
#   PLANNER_LORA_RANK       LoRA rank the server must hold             (16)
#   PLANNER_PYTHON          python of the environment with ms-swift    (.venv/bin/python, else python3)
#   CUDA_VISIBLE_DEVICES    GPUs; empty: the CPU                       (all)
#   DRY_RUN                 1: judge and print only
set -euo pipefail
# shellcheck source=scripts/train/launch_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/scripts/train/launch_common.sh"

SERVER_PORT="${PLANNER_SERVER_PORT:-8010}"
port_number PLANNER_SERVER_PORT "$SERVER_PORT"
read_given deploy vllm_tensor_parallel_size vllm_data_parallel_size -- "$@"
if [ -n "$VISIBLE_GPUS" ]; then
  # read_given sets the GIVEN_ variables.
  # shellcheck disable=SC2154
  GPUS=$((${GIVEN_vllm_tensor_parallel_size:-1} * ${GIVEN_vllm_data_parallel_size:-1}))
  RUN_ENV=("CUDA_VISIBLE_DEVICES=$(printf '%s' "$VISIBLE_GPUS" | cut -d , -f "1-$GPUS")")
  BACKEND_ARGS=(
    --infer_backend vllm --torch_dtype bfloat16
    --vllm_max_lora_rank "$LORA_CAP"
    --vllm_enable_prefix_caching true                         # the system prompt is the same in every request
    --vllm_max_model_len "$((MAX_LENGTH + MAX_COMPLETION))"
  )
else
  RUN_ENV=(CUDA_VISIBLE_DEVICES=)
  BACKEND_ARGS=(--infer_backend transformers --torch_dtype float32 --device_map cpu)
fi
ARGS=(
  "${MODEL_ARGS[@]}" "${BACKEND_ARGS[@]}"
  --served_model_name planner
  --host 127.0.0.1 --port "$SERVER_PORT"
  --max_length "$MAX_LENGTH" --max_new_tokens "$MAX_COMPLETION"
  --max_batch_size 8                                          # of transformers; vLLM has its own
  --temperature 0                                             # unless the request says otherwise
  --verbose false                                             # a shopper's words stay out of the log
  --log_interval -1 --log_level warning
)
SERVER=("$PYTHON" -m scripts.online.planner_server)
JUDGE=("${SERVER[@]}" --check --visible-gpus "$VISIBLE_GPUS")
if [ "${DRY_RUN:-0}" = 1 ]; then JUDGE+=(--dry-run); fi
step env "${RUN_ENV[@]}" "${JUDGE[@]}" -- "${ARGS[@]}" "$@" || exit 2

capture quoted "$PYTHON" -m scripts.train.swift_args deploy --quote -- "${ARGS[@]}" "$@"
printf '%q ' env "${RUN_ENV[@]}" "PYTHONPATH=$PYTHONPATH" "${SERVER[@]}" --
printf '%s\n' "$quoted"
if [ "${DRY_RUN:-0}" = 1 ]; then exit 0; fi
exec env "${RUN_ENV[@]}" "$PYTHON" -m scripts.train.supervise --log "$RUNS_DIR/server-$(date +%Y%m%d-%H%M%S)/server.log" \
  -- "${SERVER[@]}" -- "${ARGS[@]}" "$@"
