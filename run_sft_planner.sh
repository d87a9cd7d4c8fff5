#!/usr/bin/env bash
# Teach the planner its format by SFT (ms-swift): the start of GRPO.
#
# Hardware: with GPUs, DDP over TRAIN_GPUS in bfloat16 (4 x 24 GiB for the 4B model with LoRA). Without, the CPU in
# float32: for the demo's nano model.
#
#   bash run_sft_planner.sh                                          LoRA, 3 epochs, learning rate 1e-4
#   DRY_RUN=1 bash run_sft_planner.sh --num_train_epochs 2           judge and print the command, run nothing
#   PLANNER_PROMPT=short PLANNER_MODEL=runs/demo-seed42/nano bash run_sft_planner.sh --tuner_type full --learning_rate 1e-3
#
# What follows the script's name goes to `swift sft` unchanged and wins over the defaults below. Before any model is
# loaded a preflight judges the arguments as they will take effect (exit code 2 and the remedy). The run folder
# (--output_dir, default runs/sft-<time>) gets planner_manifest.json, train.log, checkpoints and TensorBoard events.
# Ctrl-C or SIGTERM ends all processes of the run; the exit code is swift's own.
#
# Variables (all optional):
#   PLANNER_MODEL           model folder or hub id                     (Qwen/Qwen3-4B-Instruct-2507)
#   PLANNER_SFT_DATA        SFT set, split train                       (build/demo/sft.jsonl)
#   PLANNER_LORA_RANK       LoRA rank, for SFT, GRPO and server alike  (16; alpha is twice the rank)
#   PLANNER_ALLOW_OVERLONG  1: train although rows exceed --max_length and will be dropped
#   PLANNER_PROMPT          the prompt the rows were rendered with, full or short
#   PLANNER_PYTHON          python of the environment with ms-swift    (.venv/bin/python, else python3)
#   TRAIN_GPUS              GPUs to train on                           (0,1,2,3 where there are GPUs)
#   NPROC_PER_NODE, NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT        as swift reads them
#   DRY_RUN                 1: judge and print only
set -euo pipefail
# shellcheck source=scripts/train/launch_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/scripts/train/launch_common.sh"

read_given sft output_dir use_ray -- "$@"
# read_given sets the GIVEN_ variables.
# shellcheck disable=SC2154
choose_hardware "$GIVEN_output_dir" "$GIVEN_use_ray"
PER_DEVICE=2   # swift accumulates to 16 samples a step
if [ "$DEVICE" = cpu ]; then PER_DEVICE=$((16 / PROCESSES > 0 ? 16 / PROCESSES : 1)); fi
ARGS=(
  "${MODEL_ARGS[@]}" "${HARDWARE_ARGS[@]}" --tuner_type lora "${LORA_ARGS[@]}"
  --dataset "${PLANNER_SFT_DATA:-$DATA_DIR/sft.jsonl}" --split_dataset_ratio 0 --load_from_cache_file false
  --max_length "$MAX_LENGTH"
  --learning_rate 1e-4 --num_train_epochs 3
  --per_device_train_batch_size "$PER_DEVICE" --gradient_checkpointing false
  --save_strategy epoch --save_total_limit 1 --logging_steps 5 --report_to tensorboard
  --check_model false --add_version false --output_dir "$RUNS_DIR/sft-$(date +%Y%m%d-%H%M%S)"
)
launch sft sft "${ARGS[@]}" "$@"
