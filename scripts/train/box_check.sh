#!/usr/bin/env bash
# The checks that need a GPU, one after the other, ending in one JSON file.
#
# Hardware: one GPU (of 24 GiB for the 4B model) and the extras `gpu` and `bge`. A check that this machine cannot do says
# so in the JSON; the others go on. Some 20 minutes with the 4B model on a 24 GiB card.
#
#   bash scripts/train/box_check.sh                               all checks -> runs/box-check-<time>/box_check.json
#   bash scripts/train/box_check.sh memory_sft rollout_server     these alone
#   bash scripts/train/box_check.sh --out runs/box-1              into this folder
#   DRY_RUN=1 bash scripts/train/box_check.sh                     print the commands, run nothing
#
# Checks:
#   environment      doctor.py: imports, versions, ports, proxies, store, encoder, disk
#   memory_sft       gpu_profile.py --measure: real SFT steps by batch and checkpointing against the card's memory
#   memory_grpo      the same for GRPO's training step
#   rollout_server   run_grpo_rollout_server.sh starts, answers a batch of completions twice, and ends
#   prefix_caching   rollout_profile.py on vLLM: time and hit rate with caching off and on, rewards equal to the bit
#   bge_m3_fp16      verify_embed_parity.py: bge-m3 in half precision on the GPU against single precision on the CPU
#
# Exit code: 0 all fine; 1 a verdict is bad or a check broke; 2 nothing is bad, but a check could not be done here (or
# wrong use). Ctrl-C or SIGTERM ends the check under way and writes the JSON of what was done.
#
# Variables (all optional; the reward, store and encoder variables are in .env.example):
#   PLANNER_MODEL           model folder or hub id, as in training     (Qwen/Qwen3-4B-Instruct-2507)
#   PLANNER_SFT_ADAPTER     SFT adapter for prefix_caching             (none: the model alone)
#   PLANNER_TRAIN_DATA      GRPO set whose first rows are asked        (build/demo/grpo.jsonl)
#   PLANNER_LORA_RANK       LoRA rank                                  (16)
#   PLANNER_ROLLOUT_PORT    port of the rollout server                 (8000)
#   PLANNER_PYTHON          python of the environment with ms-swift    (.venv/bin/python, else python3)
#   ROLLOUT_GPUS            the GPU to check on; the first of a list   (the last one of this machine)
#   DRY_RUN                 1: print only
set -euo pipefail
# shellcheck source=scripts/train/launch_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/launch_common.sh"

ALL=(environment memory_sft memory_grpo rollout_server prefix_caching bge_m3_fp16)
LIMIT=1800   # seconds a check may take
EMBED_PORT=8091   # and the next one
OUT="$RUNS_DIR/box-check-$(date +%Y%m%d-%H%M%S)"
WANTED=()
while [ $# -gt 0 ]; do
  case "$1" in
    --out)
      [ $# -gt 1 ] || refuse "--out wants a folder"
      OUT=$2
      shift
      ;;
    *)
      case " ${ALL[*]} " in
        *" $1 "*) WANTED+=("$1") ;;
        *) refuse "there is no check $1: take ${ALL[*]}" ;;
      esac
      ;;
  esac
  shift
done
[ ${#WANTED[@]} -gt 0 ] || WANTED=("${ALL[@]}")

GPU="${VISIBLE_GPUS##*,}"
if [ -n "$ROLLOUT_GPUS_GIVEN" ]; then GPU="${ROLLOUT_GPUS_GIVEN%%,*}"; fi
DATA="${PLANNER_TRAIN_DATA:-$DATA_DIR/grpo.jsonl}"
ON_GPU=(env "CUDA_VISIBLE_DEVICES=${GPU:-0}")
SCRIPTS="$CHECKOUT/scripts/train"
ADAPTER=()
if [ -n "${PLANNER_SFT_ADAPTER:-}" ] && [ "$PLANNER_SFT_ADAPTER" != none ]; then
  ADAPTER=(--adapter "$PLANNER_SFT_ADAPTER")
fi

# describe NAME: sets NEEDS (gpu, python packages) and COMMAND of a check; its result goes to $OUT/NAME.json.
describe() {
  local json="$OUT/$1.json"
  NEEDS=(gpu)
  case "$1" in
    environment)
      NEEDS=()
      COMMAND=("$PYTHON" "$SCRIPTS/doctor.py")
      ;;
    memory_sft | memory_grpo)
      COMMAND=("${ON_GPU[@]}" "$PYTHON" "$SCRIPTS/gpu_profile.py" --model "$MODEL" --kind "${1#memory_}"
        --rank "$LORA_RANK" --measure --json "$json")
      ;;
    rollout_server)
      NEEDS=(gpu vllm)
      COMMAND=(env "ROLLOUT_GPUS=${GPU:-0}" TRAIN_GPUS=none "$PYTHON" "$SCRIPTS/rollout_server_check.py" --data "$DATA"
        --port "$ROLLOUT_PORT" --json "$json")
      ;;
    prefix_caching)
      NEEDS=(gpu vllm)
      COMMAND=("${ON_GPU[@]}" "$PYTHON" "$SCRIPTS/rollout_profile.py" --backend vllm --model "$MODEL"
        ${ADAPTER[@]+"${ADAPTER[@]}"} --data "$DATA" --json "$json")
      ;;
    bge_m3_fp16)
      NEEDS=(gpu FlagEmbedding)
      COMMAND=("${ON_GPU[@]}" bash "$SCRIPTS/embed_parity_check.sh" "$PYTHON" "$EMBED_PORT" "$DATA" "$json")
      ;;
  esac
}

lacking() { # lacking NEED...: the first thing this machine lacks, in words; nothing if all is there
  local need
  for need in ${1+"$@"}; do
    if [ "$need" = gpu ]; then
      if [ -z "$VISIBLE_GPUS" ]; then
        printf 'this machine has no GPU (nvidia-smi lists none, or CUDA_VISIBLE_DEVICES hides them)'
        return
      fi
    elif ! "$PYTHON" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' "$need"; then
      printf '%s is not installed here: pip install -c constraints-gpu.txt -e ".[gpu,bge]"' "$need"
      return
    fi
  done
}

if [ "${DRY_RUN:-0}" = 1 ]; then
  for name in "${WANTED[@]}"; do
    describe "$name"
    reason="$(lacking ${NEEDS[@]+"${NEEDS[@]}"})"
    printf '%s%s:\n  ' "$name" "${reason:+ (cannot be done here: $reason)}"
    printf '%q ' "${COMMAND[@]}"
    printf '\n'
  done
  exit 0
fi

for file in "$OUT"/*.check "$OUT"/box_check.json; do
  if [ -e "$file" ]; then refuse "$OUT holds checks already: name another folder with --out"; fi
done
if ! mkdir -p "$OUT" 2>/dev/null || [ ! -w "$OUT" ]; then
  refuse "$OUT cannot be written: give another folder with --out"
fi
ended=0
child=''
# Ctrl-C reaches the supervisor from the terminal; SIGTERM and SIGHUP come to this script alone and are passed on.
# shellcheck disable=SC2317,SC2329 # the traps call it
told_to_end() {
  ended=$1
  if [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null || true; fi
}
trap 'ended=130' INT
trap 'told_to_end 143' TERM
trap 'told_to_end 129' HUP
for name in "${WANTED[@]}"; do
  describe "$name"
  reason="$(lacking ${NEEDS[@]+"${NEEDS[@]}"})"
  if [ -n "$reason" ]; then
    "$PYTHON" -m scripts.train.box_report skip --dir "$OUT" --name "$name" --reason "$reason" -- "${COMMAND[@]}"
    continue
  fi
  printf '== %s\n' "$name"
  rm -f "$OUT/$name.json"   # of a run that was killed: its figures must not stand under this one's verdict
  started=$SECONDS
  "$PYTHON" -m scripts.train.supervise --log "$OUT/$name.log" -- timeout "$LIMIT" "${COMMAND[@]}" &
  child=$!
  while :; do # a signal ends `wait`, not the supervisor
    code=0
    wait "$child" || code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  child=''
  "$PYTHON" -m scripts.train.box_report add --dir "$OUT" --name "$name" --code "$code" \
    --seconds $((SECONDS - started)) -- "${COMMAND[@]}"
  if [ "$ended" != 0 ]; then break; fi
done
code=0
"$PYTHON" -m scripts.train.box_report finish --dir "$OUT" || code=$?
if [ "$ended" != 0 ]; then exit "$ended"; fi
exit "$code"
