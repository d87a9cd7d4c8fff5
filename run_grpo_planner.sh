#!/usr/bin/env bash
# Train the planner with GRPO (ms-swift), continuing from its SFT adapter.
#
# Hardware: with GPUs, DDP over TRAIN_GPUS in bfloat16 against the vLLM server of run_grpo_rollout_server.sh, which must
# be up (6 x 24 GiB: four train, one rolls out, one encodes). Without GPUs, everything on the CPU in float32, rollouts
# by transformers: for the demo's nano model.
#
#   bash run_grpo_planner.sh --learning_rate 2e-5 --beta 0             the original's best run (r3), also the defaults
#   DRY_RUN=1 bash run_grpo_planner.sh --beta 0.01                     judge and print the command, run nothing
#   PLANNER_REWARD_WEIGHTS=field=0.40 bash run_grpo_planner.sh         a mix experiment
#   bash run_grpo_planner.sh --loss_type dr_grpo --scale_rewards none  Dr. GRPO, without sigma scaling
#   bash run_grpo_planner.sh --epsilon_high 0.28 --dynamic_sample true --overlong_filter true
#   bash run_grpo_planner.sh --output_dir runs/r3 --resume_from_checkpoint runs/r3/checkpoint-40
#   NPROC_PER_NODE=2 bash run_grpo_planner.sh                          two processes on a CPU
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=box1 MASTER_PORT=29500 bash run_grpo_planner.sh --output_dir runs/two
#                                                                      the first of two nodes (docs/more-than-one-box.md)
#
# What follows the script's name goes to `swift rlhf` unchanged and wins over the defaults below. Before any model is
# loaded a preflight judges the arguments as they will take effect (exit code 2 and the remedy). The run folder
# (--output_dir, default runs/grpo-<time>) gets planner_manifest.json, train.log, checkpoints, traces and TensorBoard
# events. Ctrl-C or SIGTERM ends all processes of the run; the exit code is swift's own.
#
# Variables (all optional; the reward, store and encoder variables are in .env.example):
#   PLANNER_MODEL           model folder or hub id                     (Qwen/Qwen3-4B-Instruct-2507)
#   PLANNER_SFT_ADAPTER     SFT adapter: start and KL reference        (newest checkpoint under runs/sft-*)
#                           none: PLANNER_MODEL is the SFT model itself (its weights were trained in full)
#   PLANNER_TRAIN_DATA      GRPO set, split train                      (build/demo/grpo.jsonl)
#   PLANNER_WATCH_DATA      split watch: chooses the checkpoint        (build/demo/watch.jsonl)
#   PLANNER_LORA_RANK       LoRA rank, for SFT, GRPO and server alike  (16; alpha is twice the rank)
#   PLANNER_ROLLOUT_PORT    port of the rollout server                 (8000)
#   PLANNER_ALLOW_OVERLONG  1: train although rows exceed --max_length
#   PLANNER_PYTHON          python of the environment with ms-swift    (.venv/bin/python, else python3)
#   TRAIN_GPUS              GPUs to train on                           (0,1,2,3 where there are GPUs)
#   ROLLOUT_GPUS            GPUs of the rollout server                 (4)
#   NPROC_PER_NODE, NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT        as swift reads them
#   DRY_RUN                 1: judge and print only
set -euo pipefail
# shellcheck source=scripts/train/launch_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/scripts/train/launch_common.sh"

GROUP=8     # completions a prompt
PROMPTS=8   # prompts a step

# The last checkpoint, by step, of the SFT run that saved last; empty if there is none. A run may have a name of its own,
# so the files' times decide and not the names.
newest_sft_adapter() {
  local file folder run latest=''
  for file in "$RUNS_DIR"/sft-*/checkpoint-*/adapter_config.json; do
    if [ -f "$file" ] && { [ -z "$latest" ] || [ "$file" -nt "$latest" ]; }; then latest="$file"; fi
  done
  [ -n "$latest" ] || return 0
  run="${latest%/checkpoint-*}/"
  for folder in "$run"checkpoint-*; do printf '%s %s\n' "${folder##*-}" "$folder"; done | sort -n | sed -n '$s/^[0-9]* //p'
}

read_given rlhf tuner_type adapters use_vllm vllm_mode output_dir -- "$@"
# read_given sets the GIVEN_ variables.
# shellcheck disable=SC2154
choose_hardware "$GIVEN_output_dir"
# shellcheck disable=SC2154
TUNER="${GIVEN_tuner_type:-lora}"

# A batch of GROUP x PROMPTS completions, or the next larger one that the processes can share in whole groups.
WORLD=$((PROCESSES * ${NNODES:-1}))
PER_DEVICE=2   # with gradient checkpointing off: 3,692 tokens/s on a 4090D, 2,414 with it; 3 a device runs out of memory
ACCUMULATION=1
EVAL_PER_DEVICE=$GROUP
if [ "$DEVICE" = gpu ]; then
  while [ $((PER_DEVICE * WORLD * ACCUMULATION)) -lt $((GROUP * PROMPTS)) ] ||
    [ $((PER_DEVICE * WORLD * ACCUMULATION % GROUP)) -ne 0 ]; do ACCUMULATION=$((ACCUMULATION + 1)); done
else
  PER_DEVICE=1
  while [ $((PER_DEVICE * WORLD)) -lt $((GROUP * PROMPTS)) ] ||
    [ $((PER_DEVICE * WORLD % GROUP)) -ne 0 ]; do PER_DEVICE=$((PER_DEVICE + 1)); done
  EVAL_PER_DEVICE=$PER_DEVICE
fi

ARGS=(--rlhf_type grpo "${MODEL_ARGS[@]}" "${HARDWARE_ARGS[@]}" --tuner_type lora "${LORA_ARGS[@]}")
# shellcheck disable=SC2154
if [ "$TUNER" != full ] && [ -z "$GIVEN_adapters" ] && [ "${PLANNER_SFT_ADAPTER:-}" != none ]; then
  ADAPTER="${PLANNER_SFT_ADAPTER:-$(newest_sft_adapter)}"
  [ -n "$ADAPTER" ] || refuse "no SFT adapter under $RUNS_DIR/sft-*: run run_sft_planner.sh first, or set PLANNER_SFT_ADAPTER"
  # Training goes on in the SFT adapter; without --ref_adapters the KL would be taken against the base model.
  ARGS+=(--adapters "$ADAPTER" --ref_adapters "$ADAPTER")
fi
ARGS+=(
  --dataset "${PLANNER_TRAIN_DATA:-$DATA_DIR/grpo.jsonl}" --val_dataset "${PLANNER_WATCH_DATA:-$DATA_DIR/watch.jsonl}"
  --split_dataset_ratio 0 --load_from_cache_file false --max_length "$MAX_LENGTH"
  --external_plugins "$PLUGIN"
  --reward_funcs planner_reward planner_retrieval planner_field planner_format planner_econ
  planner_category planner_domains_f1 planner_budget
  --reward_weights 1 0 0 0 0 0 0 0
  --num_generations "$GROUP" --temperature 1.0 --top_p 0.95 --max_completion_length "$MAX_COMPLETION"
  --learning_rate 2e-5 --beta 0 --epsilon 0.2 --num_train_epochs 1
  --per_device_train_batch_size "$PER_DEVICE" --gradient_accumulation_steps "$ACCUMULATION"
  --per_device_eval_batch_size "$EVAL_PER_DEVICE" --gradient_checkpointing false
  --save_strategy steps --save_steps 20 --save_total_limit 5   # evaluation follows save_steps unless told otherwise
  --metric_for_best_model reward --greater_is_better true
  --logging_steps 1 --log_entropy true --report_to tensorboard
  --check_model false --add_version false --output_dir "$RUNS_DIR/grpo-$(date +%Y%m%d-%H%M%S)"
)
# shellcheck disable=SC2154
if [ "$DEVICE" = gpu ] && [ "${GIVEN_use_vllm:-true}" = true ]; then
  # Sampling and training compute the log probabilities in two engines: log how far they are apart.
  ARGS+=(--use_vllm true --log_rollout_offpolicy_metrics true)
  if [ "${GIVEN_vllm_mode:-server}" = server ]; then
    ARGS+=(--vllm_mode server --vllm_server_host "$ROLLOUT_HOST" --vllm_server_port "$ROLLOUT_PORT")
  else # without it vLLM wants room for the longest text the model knows, 262,144 tokens: 36 GiB
    ARGS+=(--vllm_max_model_len "$((MAX_LENGTH + MAX_COMPLETION))")
  fi
elif [ "${GIVEN_use_vllm:-false}" = false ]; then
  ARGS+=(--use_vllm false)
fi
launch grpo rlhf "${ARGS[@]}" "$@"
