#!/usr/bin/env bash
# Serve the planner's rollouts for GRPO with vLLM (`swift rollout`). Start it before run_grpo_planner.sh.
#
# Hardware: one GPU of 24 GiB for the 4B model; more in ROLLOUT_GPUS serve as data-parallel copies. Needs the extra
# `gpu` (vllm). Listens on this machine alone. --host 0.0.0.0 opens it to other boxes: ms-swift's trainer sends no API key,
# so only a private network keeps strangers from its weights (docs/more-than-one-box.md).
#
#   bash run_grpo_rollout_server.sh                               GPU 4, port 8000
#   DRY_RUN=1 bash run_grpo_rollout_server.sh                     judge and print the command, run nothing
#   ROLLOUT_GPUS=4,5 TRAIN_GPUS=0,1,2,3 bash run_grpo_rollout_server.sh
#
# What follows the script's name goes to `swift rollout` unchanged and wins over the defaults below. A preflight refuses
# a busy port (swift would silently take the next one, where no trainer looks) and a busy port 51216, over which the
# trainer sends its weights. Output also goes to runs/rollout-<time>/rollout.log. Ctrl-C or SIGTERM ends all processes.
#
# Variables (all optional):
#   PLANNER_MODEL           model folder or hub id, as in training     (Qwen/Qwen3-4B-Instruct-2507)
#   PLANNER_LORA_RANK       LoRA rank, for SFT, GRPO and server alike  (16)
#   PLANNER_ROLLOUT_PORT    port                                       (8000)
#   PLANNER_PYTHON          python of the environment with ms-swift    (.venv/bin/python, else python3)
#   ROLLOUT_GPUS            GPUs of this server                        (4)
#   TRAIN_GPUS              GPUs of the trainer, to keep clear of      (0,1,2,3; none: this machine trains nothing)
#   DRY_RUN                 1: judge and print only
set -euo pipefail
# shellcheck source=scripts/train/launch_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/scripts/train/launch_common.sh"

TRAIN_GPUS="${TRAIN_GPUS:-0,1,2,3}"
if [ "$TRAIN_GPUS" = none ]; then TRAIN_GPUS=''; fi
RUN_ENV=("CUDA_VISIBLE_DEVICES=$ROLLOUT_GPUS")
read_given rollout vllm_tensor_parallel_size vllm_data_parallel_size -- "$@"
# read_given sets the GIVEN_ variables.
# shellcheck disable=SC2154
whole_number --vllm_tensor_parallel_size "${GIVEN_vllm_tensor_parallel_size:-1}"
COPIES=$(($(count_items "$ROLLOUT_GPUS") / ${GIVEN_vllm_tensor_parallel_size:-1}))
ARGS=(
  "${MODEL_ARGS[@]}" --torch_dtype bfloat16
  --host "$ROLLOUT_HOST" --port "$ROLLOUT_PORT"
  --vllm_enable_lora true --vllm_max_lora_rank "$LORA_CAP"   # the trainer sends its adapter, not 8 GB of weights
  --vllm_enable_prefix_caching true                           # the system prompt and the group's prompt are shared
  --vllm_max_model_len "$((MAX_LENGTH + MAX_COMPLETION))"
  --vllm_data_parallel_size "$((COPIES > 0 ? COPIES : 1))"
)
launch rollout rollout "${ARGS[@]}" "$@"
