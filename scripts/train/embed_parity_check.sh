#!/usr/bin/env bash
# bge-m3 in half precision on the GPU against single precision on the CPU, each served by embed_server.py for as long as
# verify_embed_parity.py compares them. Part of box_check.sh.
#
#   bash scripts/train/embed_parity_check.sh PYTHON PORT TEXTS FILE     serves on PORT and PORT + 1, writes FILE
#
# The collection is that of QDRANT_URL and QDRANT_COLLECTION, or PLANNER_STORE_DIR; bge-m3 must have filled it.
# Exit code: verify_embed_parity.py's own; 2 where a server does not come up.
set -euo pipefail
[ $# = 4 ] || { printf 'usage: %s PYTHON PORT TEXTS FILE\n' "$0" >&2; exit 2; }
PYTHON=$1 PORT=$2 TEXTS=$3 FILE=$4
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
LIMIT=600   # seconds until both answer: the first start loads the model from the hub

SERVERS=()
stop() { kill ${SERVERS[@]+"${SERVERS[@]}"} 2>/dev/null || true; wait || true; }
trap stop EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

"$PYTHON" "$HERE/embed_server.py" --device cpu --port "$PORT" &
SERVERS+=($!)
"$PYTHON" "$HERE/embed_server.py" --device cuda --port $((PORT + 1)) &
SERVERS+=($!)
for port in "$PORT" $((PORT + 1)); do
  until "$PYTHON" -c 'import sys, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(sys.argv[1], timeout=5)' \
    "http://127.0.0.1:$port/health" 2>/dev/null; do
    for server in "${SERVERS[@]}"; do
      kill -0 "$server" 2>/dev/null || { printf 'an embedding server ended before it was up\n' >&2; exit 2; }
    done
    [ $SECONDS -lt $LIMIT ] || { printf 'no embedding server on port %s after %s s\n' "$port" "$LIMIT" >&2; exit 2; }
    sleep 1
  done
done
"$PYTHON" "$HERE/verify_embed_parity.py" "http://127.0.0.1:$PORT/v1" "http://127.0.0.1:$((PORT + 1))/v1" \
  --texts "$TEXTS" --json "$FILE"
