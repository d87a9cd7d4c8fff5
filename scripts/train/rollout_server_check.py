"""Start the rollout server as training does, ask it for a batch of completions twice, and stop it again.

`run_grpo_rollout_server.sh` is started with the variables of this shell (ROLLOUT_GPUS, TRAIN_GPUS, PLANNER_MODEL ...),
then /infer/ is asked as ms-swift's trainer asks it: every completion is a request. The first pass begins with an empty
prefix cache, the second finds the prompts in it. Reported are the seconds of start-up and of both passes, completions
and tokens a second, and how many answers hold a plan (a base model's may not). The vLLM server has not been run by this
repository's tests, which have no GPU; they run this script against a small stand-in for the swift executable.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scripts.eval.eval_planner import read_rows
from scripts.eval.generate import MAX_NEW_TOKENS, SAMPLE_TEMPERATURE, SAMPLE_TOP_P
from scripts.files import write_atomically
from scripts.train.dataset_check import check_prompt_style
from scripts.train.doctor import launcher_defaults
from scripts.train.swift_args import CHECKOUT
from swift_plugin.reward_loader import load_reward
from swift_plugin.settings import Settings

LAUNCHER = CHECKOUT / "run_grpo_rollout_server.sh"
REFUSED = 2  # the launcher's exit code where its preflight refuses
POLL_SECONDS = 0.5
STOP_SECONDS = 90.0  # supervise.py takes 40 s at most before it kills
ANSWER_SECONDS = 600.0


class ServerFault(Exception):
    """The server died, did not come up or answered wrongly: the verdict is bad."""


class Refused(Exception):
    """The launcher refused to start: its own message stands above."""


def wait_until_up(client: Any, server: "subprocess.Popen[bytes]", limit_s: float) -> float:
    """Seconds until /health/ answers 200. Raises Refused, or ServerFault when the server ends or is late."""
    import httpx

    started = time.monotonic()
    with tqdm(desc="rollout server starts", bar_format="{desc}: {elapsed}", file=sys.stderr) as bar:
        while time.monotonic() - started < limit_s:
            code = server.poll()
            if code == REFUSED:
                raise Refused(f"{LAUNCHER.name} refused to start")
            if code is not None:
                raise ServerFault(f"the rollout server ended with exit code {code} before it was up")
            try:
                if client.get("/health/", timeout=POLL_SECONDS * 4).status_code == httpx.codes.OK:
                    return time.monotonic() - started
            except httpx.TransportError:
                pass  # not up yet
            time.sleep(POLL_SECONDS)
            bar.update()
    raise ServerFault(f"the rollout server was not up after {limit_s:g} s")


def post(client: Any, path: str, body: Any) -> Any:
    """The JSON answer to one request. Raises ServerFault for any other."""
    import httpx

    try:
        answer = client.post(path, json=body, timeout=ANSWER_SECONDS)
        if answer.status_code != httpx.codes.OK:
            raise ServerFault(f"{path} answers HTTP {answer.status_code}: {answer.text[:200]}")
        return answer.json()
    except httpx.TransportError as error:
        raise ServerFault(f"{path}: {type(error).__name__}: {error}") from None
    except ValueError:
        raise ServerFault(f"{path} answers no JSON") from None


def ask(client: Any, rows: Sequence[dict[str, Any]], group: int, max_new_tokens: int) -> tuple[list[str], int, float]:
    """The texts of `group` completions a row, the tokens written and the seconds it took."""
    requests = [{"messages": row["messages"]} for row in rows for _ in range(group)]
    config = {
        "max_tokens": max_new_tokens, "temperature": SAMPLE_TEMPERATURE, "top_p": SAMPLE_TOP_P, "n": 1,
    }  # fmt: skip
    started = time.perf_counter()
    outputs = post(client, "/infer/", {"infer_requests": requests, "request_config": config, "use_tqdm": False})
    seconds = time.perf_counter() - started
    if not isinstance(outputs, list) or len(outputs) != len(requests):
        raise ServerFault(f"{len(requests)} completions were asked for, and {_count(outputs)} came back")
    try:
        answers = [output.get("response", output) for output in outputs]
        texts = [answer["choices"][0]["message"]["content"] for answer in answers]
        tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise ServerFault(f"an answer of /infer/ lacks {error}") from None
    empty = sum(not text for text in texts)
    if empty:
        raise ServerFault(f"{empty} of {len(texts)} completions are empty")
    return texts, tokens, seconds


def _count(outputs: Any) -> str:
    return str(len(outputs)) if isinstance(outputs, list) else "no list"


def check(options: argparse.Namespace) -> dict[str, Any]:
    """What the server did, JSON-ready; it has ended when this returns or raises."""
    import httpx

    settings = Settings.from_env()
    rows = read_rows(options.data)[: options.prompts]
    check_prompt_style(options.data, rows, settings.prompt)
    parse_plan = load_reward(settings.reward_file).parse_plan
    host = launcher_defaults()["ROLLOUT_HOST"]
    command = ["bash", str(LAUNCHER), "--port", str(options.port)]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    # Loopback traffic goes through no proxy.
    with httpx.Client(base_url=f"http://{host}:{options.port}", trust_env=False) as client:
        try:
            start_s = wait_until_up(client, server, options.start_limit)
            passes = []
            post(client, "/reset_prefix_cache/", {})
            for cache in ("empty", "filled"):
                texts, tokens, seconds = ask(client, rows, options.group, options.max_new_tokens)
                passes.append(
                    {
                        "prefix_cache": cache,
                        "seconds": seconds,
                        "completions": len(texts),
                        "completions_per_s": len(texts) / seconds,
                        "tokens_written_per_s": tokens / seconds,
                        "plans": sum(parse_plan(text).plan is not None for text in texts),
                    }
                )
        finally:
            stop(server)
    return {"start_s": start_s, "passes": passes}


def stop(server: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, on which the launcher ends every process of the server; SIGKILL to its group if that takes too long."""
    if server.poll() is None:
        server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def main(argv: Sequence[str] | None = None) -> int:
    port = int(launcher_defaults()["ROLLOUT_PORT"])
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  ROLLOUT_GPUS=5 TRAIN_GPUS=none python scripts/train/rollout_server_check.py "
        "--data data/grpo.jsonl\nexit code: 0 fine, 1 the server died or answered wrongly, 2 wrong use or refused",
    )
    parser.add_argument("--data", type=Path, required=True, help="GRPO set; its first rows are asked")
    parser.add_argument("--port", type=int, default=port, help=f"port to serve on ({port})")
    parser.add_argument("--prompts", type=int, default=32, help="prompts (32)")
    parser.add_argument("--group", type=int, default=8, help="completions a prompt (8)")
    parser.add_argument("--max-new-tokens", type=int, default=MAX_NEW_TOKENS, help=f"({MAX_NEW_TOKENS})")
    parser.add_argument("--start-limit", type=float, default=900.0, help="seconds until it must be up (900)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE as well")
    options = parser.parse_args(argv)
    if min(options.prompts, options.group, options.max_new_tokens, options.start_limit) < 1:
        parser.error("prompts, group, new tokens and the start limit must be 1 or more")
    signal.signal(signal.SIGTERM, _leave)  # so that the server is stopped on the way out
    try:
        made = check(options)
    except ServerFault as error:
        print(f"rollout_server_check: {error}", file=sys.stderr)
        return 1
    except (OSError, ValueError, Refused) as error:
        print(f"rollout_server_check: {error}", file=sys.stderr)
        return 2
    if options.json is not None:
        write_atomically(options.json, json.dumps(made, indent=2) + "\n")
    print(f"rollout server: up after {made['start_s']:.0f} s")
    for row in made["passes"]:
        print(
            f"  prefix cache {row['prefix_cache']}: {row['completions']} completions in {row['seconds']:.2f} s, "
            f"{row['tokens_written_per_s']:.0f} tokens/s, {row['plans']} hold a plan"
        )
    return 0


def _leave(_number: int, _frame: Any) -> None:
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
