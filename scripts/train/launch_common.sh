# shellcheck shell=bash disable=SC2034
# What run_sft_planner.sh, run_grpo_planner.sh and run_grpo_rollout_server.sh share. Sourced, never run.
# Works with bash 3.2 (macOS): no mapfile, no `[[ -v ]]`, no "${empty[@]}" under `set -u`.

CHECKOUT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"

refuse() {
  printf '%s: refused: %s\n' "$(basename "$0")" "$1" >&2
  exit 2
}

whole_number() { # whole_number NAME VALUE: refuse a value that is no number of 1 or more
  case "$2" in
    '' | 0* | *[!0-9]*) refuse "$1=$2 is no whole number of 1 or more" ;;
  esac
}

port_number() { # port_number NAME VALUE
  whole_number "$1" "$2"
  if [ "${#2}" -gt 5 ] || [ "$2" -gt 65535 ]; then refuse "$1=$2 is no port: give 1 to 65535"; fi
}

# --- a signal before the trainer is there ---------------------------------------------------------------------------
# bash runs a trap only when its foreground command has ended, but a signal ends `wait` at once: whatever may take long
# goes through `step`. From its `exec` on, scripts/train/supervise.py takes the signals.
stopped() { # stopped NAME CODE: end the step, say so on the last line, exit
  trap 'kill -KILL $(jobs -p) 2>/dev/null || true' HUP INT TERM   # a second signal
  local job
  for job in $(jobs -p); do kill -TERM "$job" 2>/dev/null || true; done
  wait
  printf 'planner: the run ended with exit code %s: stopped by %s before it began\n' "$2" "$1" >&2
  exit "$2"
}
trap 'stopped SIGHUP 129' HUP
trap 'stopped SIGINT 130' INT
trap 'stopped SIGTERM 143' TERM
# No trap sees a kill -9: the kernel then ends the step. Without setpriv (macOS) the step goes on to its own end.
WITH_US=(setpriv --pdeathsig TERM)
"${WITH_US[@]}" true 2>/dev/null || WITH_US=(env)

step() { # step COMMAND...: run it; a signal to this shell ends it
  "${WITH_US[@]}" "$@" &
  wait "$!"
}

capture() { # capture NAME COMMAND...: a step whose output, without its last newlines, goes into the variable NAME
  local into=$1 file
  shift
  file="$(mktemp)"
  exec 7<"$file"
  exec 8>"$file"
  rm -f "$file"   # nothing is left to clean up, however this ends
  step "$@" >&8 || return
  printf -v "$into" '%s' "$(cat <&7)"
  exec 7<&- 8>&-
}
# --------------------------------------------------------------------------------------------------------------------

# The header of the launcher is its help.
for argument in ${1+"$@"}; do
  case "$argument" in
    -h | --help)
      sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0"
      exit 0
      ;;
    --) break ;;
  esac
done

case "${DRY_RUN:-0}" in
  0 | 1) ;;
  *) refuse "DRY_RUN=$DRY_RUN: give 1 to print the command only, 0 to run it" ;;
esac

# --- stated once, for SFT, GRPO and the rollout server -------------------------------------------------------------
MODEL="${PLANNER_MODEL:-Qwen/Qwen3-4B-Instruct-2507}"
MODEL_TYPE=qwen3            # a local folder does not tell swift which of its Qwen3 types it is
TEMPLATE=qwen3_nothinking   # `qwen3` would train an empty think block that GRPO's prompt does not open
LORA_RANK="${PLANNER_LORA_RANK:-16}"
MAX_LENGTH=2048             # tokens of a row: the prompt, for SFT with its answer
MAX_COMPLETION=256          # tokens of a plan
ROLLOUT_HOST=127.0.0.1
ROLLOUT_PORT="${PLANNER_ROLLOUT_PORT:-8000}"
VLLM_LORA_RANKS=(1 8 16 32 64 128 256 320 512)   # what vLLM allows for vllm_max_lora_rank
DATA_DIR="$CHECKOUT/build/demo"
RUNS_DIR="$CHECKOUT/runs"
PLUGIN="$CHECKOUT/swift_plugin/grpo_planner_plugin.py"
# --------------------------------------------------------------------------------------------------------------------

whole_number PLANNER_LORA_RANK "$LORA_RANK"
port_number PLANNER_ROLLOUT_PORT "$ROLLOUT_PORT"
LORA_CAP=0
for rank in "${VLLM_LORA_RANKS[@]}"; do
  if [ "$LORA_CAP" -eq 0 ] && [ "$rank" -ge "$LORA_RANK" ]; then LORA_CAP=$rank; fi
done
if [ "$LORA_CAP" -eq 0 ]; then
  refuse "PLANNER_LORA_RANK=$LORA_RANK is above every rank vLLM serves (${VLLM_LORA_RANKS[*]})"
fi
# LoRA without dropout: with it the policy differs from itself, and GRPO's ratios and KL are noise.
LORA_ARGS=(--target_modules all-linear --lora_rank "$LORA_RANK" --lora_alpha "$((2 * LORA_RANK))" --lora_dropout 0)
MODEL_ARGS=(--model "$MODEL" --model_type "$MODEL_TYPE" --template "$TEMPLATE")

PYTHON="${PLANNER_PYTHON:-}"
if [ -z "$PYTHON" ]; then
  PYTHON="$CHECKOUT/.venv/bin/python"
  [ -x "$PYTHON" ] || PYTHON="$(command -v python3 || true)"
fi
if [ -z "$PYTHON" ] || ! [ -x "$PYTHON" ]; then
  refuse "no Python at ${PYTHON:-.venv/bin/python}: run make setup, or set PLANNER_PYTHON to the python of your environment"
fi
SWIFT="$(dirname "$PYTHON")/swift"   # never from PATH: on macOS that is Apple's compiler
[ -x "$SWIFT" ] || refuse "no swift beside $PYTHON: run make setup, or set PLANNER_PYTHON to an environment with ms-swift"

export PYTHONPATH="$CHECKOUT${PYTHONPATH:+:$PYTHONPATH}"   # the plugin imports reward and swift_plugin
export PYTHONUNBUFFERED=1

# GPUs of this machine, comma-separated: CUDA_VISIBLE_DEVICES where it is set (empty or -1: none), else nvidia-smi's.
visible_gpus() {
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    if [ "$CUDA_VISIBLE_DEVICES" != -1 ]; then printf '%s' "$CUDA_VISIBLE_DEVICES"; fi
  elif command -v nvidia-smi >/dev/null; then
    { nvidia-smi -L 2>/dev/null || true; } | sed -n 's/^GPU \([0-9][0-9]*\):.*/\1/p' | paste -s -d , -
  fi
}
VISIBLE_GPUS="$(visible_gpus)"
ROLLOUT_GPUS_GIVEN="${ROLLOUT_GPUS:-}"
ROLLOUT_GPUS="${ROLLOUT_GPUS:-4}"

count_items() { # count_items a,b,c -> 3
  local -a items
  IFS=, read -r -a items <<<"$1"
  printf '%s' "${#items[@]}"
}

# choose_hardware [OUTPUT_DIR] [USE_RAY]: sets DEVICE (gpu or cpu), PROCESSES (on this node), HARDWARE_ARGS and RUN_ENV
# for a training run. OUTPUT_DIR and USE_RAY are what the user's own arguments say of these options.
choose_hardware() {
  local output_dir=${1:-} use_ray=${2:-false}
  whole_number NNODES "${NNODES:-1}"
  whole_number NPROC_PER_NODE "${NPROC_PER_NODE:-1}"
  if [ "${TRAIN_GPUS:-}" = none ]; then
    refuse "TRAIN_GPUS=none is for the rollout server of a machine that trains nothing: name GPUs, or unset it"
  fi
  if [ -n "$VISIBLE_GPUS" ] || [ -n "${TRAIN_GPUS:-}" ]; then
    DEVICE=gpu
    TRAIN_GPUS="${TRAIN_GPUS:-0,1,2,3}"
    PROCESSES="${NPROC_PER_NODE:-$(count_items "$TRAIN_GPUS")}"
    HARDWARE_ARGS=(--torch_dtype bfloat16)
    RUN_ENV=("CUDA_VISIBLE_DEVICES=$TRAIN_GPUS")
    # With NPROC_PER_NODE swift starts torchrun; with Ray it starts one driver, which places its own workers.
    if [ "$use_ray" != true ]; then RUN_ENV+=("NPROC_PER_NODE=$PROCESSES"); fi
  else
    DEVICE=cpu
    TRAIN_GPUS=''
    PROCESSES="${NPROC_PER_NODE:-1}"
    HARDWARE_ARGS=(--torch_dtype float32 --device_map cpu --use_cpu true --dataloader_num_workers 0)
    RUN_ENV=(CUDA_VISIBLE_DEVICES= ACCELERATE_USE_CPU=true)
    if [ $((PROCESSES * ${NNODES:-1})) != 1 ]; then
      HARDWARE_ARGS+=(--ddp_backend gloo)
      local cores
      cores="$(getconf _NPROCESSORS_ONLN 2>/dev/null || printf 1)"
      # torchrun would give every process one thread.
      RUN_ENV+=("NPROC_PER_NODE=$PROCESSES" "OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > PROCESSES ? cores / PROCESSES : 1))}")
    fi
  fi
  if [ "${NNODES:-1}" != 1 ]; then
    join_nodes "$output_dir"
  elif [ "$PROCESSES" != 1 ] && [ "$use_ray" != true ] && [ -z "${MASTER_PORT:-}" ]; then
    # torchrun's fixed 29500 would make a second run on this machine fail.
    RUN_ENV+=("MASTER_PORT=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')")
  fi
}

# join_nodes OUTPUT_DIR: add torchrun's variables for several nodes to RUN_ENV, so that the printed command holds them.
join_nodes() {
  local name
  for name in NODE_RANK MASTER_ADDR MASTER_PORT; do
    if [ -z "${!name:-}" ]; then # torchrun's own defaults would let every node wait for itself
      refuse "NNODES=$NNODES needs $name: NODE_RANK from 0 to $((NNODES - 1)), one a node; MASTER_ADDR and MASTER_PORT \
of node 0, the same on every node"
    fi
  done
  if [ "$NODE_RANK" != 0 ]; then whole_number NODE_RANK "$NODE_RANK"; fi
  port_number MASTER_PORT "$MASTER_PORT"
  if [ "$NODE_RANK" -ge "$NNODES" ]; then refuse "NODE_RANK=$NODE_RANK: with NNODES=$NNODES they are 0 to $((NNODES - 1))"; fi
  if [ -z "$1" ]; then
    refuse "NNODES=$NNODES: name the run folder with --output_dir, the same on every node; the default holds the time"
  fi
  RUN_ENV+=("NNODES=$NNODES" "NODE_RANK=$NODE_RANK" "MASTER_ADDR=$MASTER_ADDR" "MASTER_PORT=$MASTER_PORT")
}

# read_given COMMAND NAME... -- ARGUMENT...: what the user's own arguments say of these options, as GIVEN_<NAME>.
read_given() {
  local command=$1 name values
  shift
  local -a names=()
  while [ "$1" != -- ]; do
    names+=("$1")
    shift
  done
  shift
  capture values "$PYTHON" -m scripts.train.swift_args "$command" --given "${names[@]}" -- ${1+"$@"} || exit 2
  for name in "${names[@]}"; do
    printf -v "GIVEN_$name" '%s' "${values%%$'\n'*}"
    case "$values" in # $(...) drops the last newlines, and with them trailing empty values
      *$'\n'*) values="${values#*$'\n'}" ;;
      *) values='' ;;
    esac
  done
}

# launch KIND COMMAND ARGUMENT...: judge the line, print it, and (unless DRY_RUN=1) run it to its end.
# COMMAND is swift's; RUN_ENV holds the variables it runs with. The last exit code is swift's own.
launch() {
  local kind=$1 command=$2
  shift 2
  local -a judge=("$PYTHON" -m scripts.train.preflight "$kind" --visible-gpus "$VISIBLE_GPUS"
    --train-gpus "${TRAIN_GPUS:-}" --rollout-gpus "$ROLLOUT_GPUS" --lora-cap "$LORA_CAP"
    --lora-ranks "$(IFS=,; printf '%s' "${VLLM_LORA_RANKS[*]}")")
  if [ "${DRY_RUN:-0}" = 1 ]; then judge+=(--dry-run); fi
  step env "${RUN_ENV[@]}" "${judge[@]}" -- "$@" || exit 2

  local quoted run_dir
  capture quoted "$PYTHON" -m scripts.train.swift_args "$command" --quote -- "$@"
  printf '%q ' env "${RUN_ENV[@]}" "PYTHONPATH=$PYTHONPATH" "$SWIFT" "$command"
  printf '%s\n' "$quoted"
  if [ "${DRY_RUN:-0}" = 1 ]; then exit 0; fi

  if [ "$kind" = rollout ]; then
    run_dir="$RUNS_DIR/rollout-$(date +%Y%m%d-%H%M%S)"
    exec env "${RUN_ENV[@]}" "$PYTHON" -m scripts.train.supervise --log "$run_dir/rollout.log" -- "$SWIFT" "$command" "$@"
  fi
  capture run_dir "$PYTHON" -m scripts.train.swift_args "$command" --print output_dir -- "$@"
  local log="$run_dir/train.log"
  if [ "${NODE_RANK:-0}" = 0 ]; then
    step env "${RUN_ENV[@]}" "$PYTHON" -m scripts.train.manifest "$kind" --out "$run_dir" -- "$@"
  else
    log="$run_dir/train.node$NODE_RANK.log"
  fi
  local steps=("$PYTHON" -m scripts.train.show_rows "$command" -- "$@" :: "$SWIFT" "$command" "$@")
  if [ "$kind" = grpo ] && [ "${NODE_RANK:-0}" = 0 ]; then steps+=(:: "$PYTHON" -m scripts.train.link_best "$run_dir"); fi
  exec env "${RUN_ENV[@]}" "$PYTHON" -m scripts.train.supervise --log "$log" -- "${steps[@]}"
}
