"""Serve bge-m3 as an OpenAI-compatible embeddings endpoint: POST /v1/embeddings, GET /health.

The model is FlagEmbedding's own; on a GPU it runs in half precision, on the CPU in single. Requests that wait are
encoded together. Set PLANNER_EMBED_API_KEY to demand that bearer key. On SIGTERM or Ctrl-C the requests under way are
answered, then it ends with 0. It ends with 2 if the port, the device or the model cannot be had.
"""

import argparse
import dataclasses
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from scripts.train.embed_batching import Batcher, Encode
from swift_plugin.encoders import EncoderError, Vectors, make_encoder
from swift_plugin.flag_encoder import FlagEncoder
from swift_plugin.retry import is_loopback
from swift_plugin.reward_loader import load_reward
from swift_plugin.settings import Settings

logger = logging.getLogger("embed_server")

HASHED = "hashed"
DRAIN_S = 20  # what a request under way may take after SIGTERM
KEEP_ALIVE_S = 75  # longer than any client keeps an idle connection: else it may ask on one that is just being closed


class Model(NamedTuple):
    """An encoder that is ready: its name, the size of its vectors, and how it encodes."""

    name: str
    dim: int
    encode: Encode


def open_model(args: argparse.Namespace, settings: Settings) -> Model:
    """The encoder asked for, loaded, after it has encoded once. Raises EncoderError."""
    if args.model == HASHED:
        words = load_reward(settings.reward_file).words
        hashed = make_encoder(dataclasses.replace(settings, embed_url=None, embed_model=None), words)

        def encode(texts: Sequence[str]) -> tuple[Vectors, list[int]]:
            return hashed.encode(texts), [len(words(text)) for text in texts]

        return Model(hashed.name, hashed.dim, encode)
    encoder = FlagEncoder(args.model, device=args.device, max_tokens=args.max_length, batch=args.batch)
    encoder.encode(["warm-up"])  # what is wrong with the model or the device shows before anybody is served
    return Model(encoder.name, encoder.dim, encoder.encode_counted)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, which nobody can connect to yet. Raises OSError naming the remedy."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        way = "end what listens there, or give another --host or --port"
        raise OSError(f"cannot serve on {host}:{port} ({error}): {way}") from None
    return bound


def serve(bound: socket.socket, model: Model, *, batch: int, capacity: int, api_key: str | None) -> None:
    """Answer requests until SIGTERM or SIGINT, and then those that are under way."""
    import uvicorn

    from scripts.train.embed_api import make_app

    with Batcher(model.encode, batch=batch, capacity=capacity) as batcher:
        app = make_app(batcher, model=model.name, dim=model.dim, api_key=api_key)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=DRAIN_S,
            timeout_keep_alive=KEEP_ALIVE_S,
        )  # fmt: skip
        server = uvicorn.Server(config)

        def stop(number: int, frame: FrameType | None) -> None:
            # uvicorn has a handler of its own; after draining it raises the signal again, for this one, which would
            # otherwise be the default and turn a clean stop into a death by signal.
            server.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        bound.listen(config.backlog)
        host, port = bound.getsockname()[:2]
        print(f"{model.name} at http://{f'[{host}]' if ':' in host else host}:{port}/v1", flush=True)
        server.run(sockets=[bound])
    print("stopped", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  CUDA_VISIBLE_DEVICES=5 python scripts/train/embed_server.py --model BAAI/bge-m3\n"
        "  python scripts/train/embed_server.py --model /models/bge-m3 --device cpu --port 8081\n"
        "then, where the planner is trained:\n  export PLANNER_EMBED_URL=http://127.0.0.1:8081/v1",
    )
    parser.add_argument(
        "--model", default="BAAI/bge-m3",
        help=f"folder or hub name; {HASHED}: the demo's encoder, for a try without weights (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the first GPU, without one the CPU)")
    parser.add_argument("--host", default="127.0.0.1", help="(default: %(default)s, this machine only)")
    parser.add_argument("--port", type=int, default=8081, help="0 takes a free one (default: %(default)s)")
    parser.add_argument(
        "--max-length", type=_positive, default=FlagEncoder.MAX_TOKENS,
        help="tokens a text is cut to; the same as when the catalogue was indexed (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=_positive, default=FlagEncoder.BATCH, help="texts encoded at once (default: %(default)s)"
    )
    parser.add_argument("--queue", type=_positive, default=4096, help="texts that may wait (default: %(default)s)")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        settings = Settings.from_env()
        bound = bind(args.host, args.port)
        model = open_model(args, settings)
    except (OSError, ValueError, EncoderError) as error:
        print(f"embed_server: {error}", file=sys.stderr)
        return 2
    if settings.embed_api_key is None and not is_loopback(f"http://{args.host}"):
        logger.warning("--host %s is open to the network and no PLANNER_EMBED_API_KEY is set", args.host)
    with bound:
        serve(bound, model, batch=args.batch, capacity=args.queue, api_key=settings.embed_api_key)
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
