"""The embeddings server: batching and its bounds, OpenAI's interface, the key, a clean stop, and the real bge class."""

import base64
import json
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from small_world import TITLES, encoder
from tiny_bge import SIZE, build_bge_folder

from scripts.train.embed_api import MAX_CHARS, make_app
from scripts.train.embed_batching import Batcher, EncodingFailed, QueueFull, Stopping, TooManyTexts
from swift_plugin.encoders import EncoderError, EndpointEncoder, Vectors
from swift_plugin.flag_encoder import FlagEncoder
from tests import damaged
from tests.launch_world import CHECKOUT, clean_environment

KEY = "s3cret-key"
WAIT = 20.0  # seconds; nothing here takes one


class Gated:
    """The hashed encoder behind a gate: it notes its batches, and waits while the gate is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.batches: list[list[str]] = []
        self.fault: Exception | None = None
        self._encoder = encoder()

    def __call__(self, texts: Sequence[str]) -> tuple[Vectors, list[int]]:
        self.batches.append(list(texts))
        self.entered.release()
        assert self.gate.wait(WAIT)
        if self.fault is not None:
            raise self.fault
        return self._encoder.encode(texts), [len(text.split()) for text in texts]

    def hold(self) -> None:
        """From now on batches stop at the gate; `running()` waits until one does."""
        self.gate.clear()

    def running(self) -> None:
        assert self.entered.acquire(timeout=WAIT)


@pytest.fixture
def gated() -> Gated:
    return Gated()


# --- batching ---------------------------------------------------------------------------------------------------------


def test_requests_that_gather_are_encoded_together_in_their_order(gated: Gated) -> None:
    gated.hold()
    with Batcher(gated, batch=4, capacity=100) as batcher:
        first = batcher.submit(["first"])
        gated.running()  # "first" went alone: nobody waits for a batch to fill
        lists = [["a", "b", "c"], ["d"], ["e", "f"], [f"g{n}" for n in range(6)]]
        futures = [batcher.submit(texts) for texts in lists]
        assert batcher.waiting == 12
        gated.gate.set()
        results = [future.result(WAIT) for future in [first, *futures]]
    assert gated.batches == [["first"], ["a", "b", "c", "d"], ["e", "f", "g0", "g1"], ["g2", "g3", "g4", "g5"]]
    for texts, result in zip([["first"], *lists], results, strict=True):
        np.testing.assert_array_equal(result.rows, encoder().encode(texts))
        assert result.tokens == len(texts)
    assert batcher.waiting == 0


def test_the_queue_is_bounded_in_texts(gated: Gated) -> None:
    gated.hold()
    with Batcher(gated, batch=2, capacity=5) as batcher:
        running = batcher.submit(["x"])
        gated.running()
        kept = [batcher.submit(["a", "b", "c"]), batcher.submit(["d"])]
        with pytest.raises(QueueFull, match="4 texts are waiting, the queue holds 5"):
            batcher.submit(["e", "f"])
        kept.append(batcher.submit(["e"]))  # exactly full
        with pytest.raises(QueueFull):
            batcher.submit(["g"])
        with pytest.raises(TooManyTexts, match="6 texts in one request, the queue holds 5"):
            batcher.submit(list("abcdef"))
        gated.gate.set()
        assert [len(future.result(WAIT).rows) for future in [running, *kept]] == [1, 3, 1, 1]
        assert len(batcher.submit(list("abcde")).result(WAIT).rows) == 5  # there is room again


def test_a_request_given_up_is_not_encoded(gated: Gated) -> None:
    gated.hold()
    with Batcher(gated, batch=2, capacity=10) as batcher:
        running = batcher.submit(["x"])
        gated.running()
        gone, kept = batcher.submit(["a", "b", "c"]), batcher.submit(["d"])
        assert gone.cancel()
        assert batcher.waiting == 1  # its room is free at once, and not when the batch under way is done
        gated.gate.set()
        assert len(kept.result(WAIT).rows) == len(running.result(WAIT).rows) == 1
        assert batcher.waiting == 0
    assert gated.batches == [["x"], ["d"]]


def test_a_failed_batch_fails_its_requests_and_no_other(gated: Gated) -> None:
    with Batcher(gated, batch=2, capacity=10) as batcher:
        gated.fault = RuntimeError("CUDA out of memory")
        with pytest.raises(EncodingFailed, match="RuntimeError: CUDA out of memory"):
            batcher.submit(["a", "b", "c"]).result(WAIT)
        assert batcher.failure == "RuntimeError: CUDA out of memory"
        gated.fault = None
        assert len(batcher.submit(["d"]).result(WAIT).rows) == 1  # the thread lives on
        assert batcher.failure is None and batcher.waiting == 0
    assert gated.batches == [["a", "b"], ["d"]]  # the failed request's "c" was not tried


def test_closing_finishes_what_waits_and_takes_nothing_more(gated: Gated) -> None:
    gated.hold()
    with Batcher(gated, batch=1, capacity=10) as batcher:
        futures = [batcher.submit([text]) for text in "abc"]
        gated.running()
        closing = threading.Thread(target=batcher.close)
        closing.start()
        gated.gate.set()
        closing.join(WAIT)
        assert all(future.done() for future in futures)
        with pytest.raises(Stopping):
            batcher.submit(["d"])


# --- the interface, over real HTTP ------------------------------------------------------------------------------------


@contextmanager
def served(gated: Gated, *, key: str | None = None, batch: int = 64, capacity: int = 200) -> Iterator[Any]:
    """The application under uvicorn in a thread; gives the server, with its `url`."""
    import uvicorn

    with Batcher(gated, batch=batch, capacity=capacity) as batcher:
        app = make_app(batcher, model="hashed-480", dim=480, api_key=key)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run)
        thread.start()
        deadline = time.monotonic() + WAIT
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        server.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.batcher = batcher
        try:
            yield server
        finally:
            gated.gate.set()
            server.should_exit = True
            thread.join(WAIT)
            assert not thread.is_alive()


def ask(url: str, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": "hashed-480", "input": TITLES[:3], **body}
    return httpx.post(f"{url}/v1/embeddings", json=body, headers=headers, timeout=WAIT, trust_env=False)


@pytest.fixture(scope="module")
def open_server() -> Iterator[Any]:
    with served(Gated()) as server:
        yield server


def test_an_answer_has_openais_form(open_server: Any) -> None:
    answer = ask(open_server.url)
    assert answer.status_code == 200
    value = answer.json()
    assert (value["object"], value["model"]) == ("list", "hashed-480")
    assert [(item["object"], item["index"]) for item in value["data"]] == [("embedding", n) for n in range(3)]
    tokens = sum(len(title.split()) for title in TITLES[:3])
    assert value["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    rows = np.array([item["embedding"] for item in value["data"]], dtype=np.float32)
    np.testing.assert_array_equal(rows, encoder().encode(TITLES[:3]))  # to the bit: the digits suffice


def test_one_text_may_come_without_a_list_and_base64_is_little_endian_float32(open_server: Any) -> None:
    (item,) = ask(open_server.url, input=TITLES[0], encoding_format="base64").json()["data"]
    row = np.frombuffer(base64.b64decode(item["embedding"]), dtype="<f4")
    np.testing.assert_array_equal(row, encoder().encode(TITLES[:1])[0])


def test_openais_own_client_reads_it(open_server: Any) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{open_server.url}/v1", api_key="EMPTY", http_client=httpx.Client(trust_env=False))
    answer = client.embeddings.create(model="hashed-480", input=TITLES[:2])  # asks for base64
    rows = np.array([item.embedding for item in answer.data], dtype=np.float32)
    np.testing.assert_array_equal(rows, encoder().encode(TITLES[:2]))


def test_the_kits_client_gets_what_the_encoder_gives(open_server: Any) -> None:
    client = EndpointEncoder(open_server.url, "some/hashed-480", retry_budget_s=5, request_timeout_s=5)
    np.testing.assert_allclose(client.encode(TITLES), encoder().encode(TITLES), atol=1e-6)


REFUSED: list[tuple[dict[str, Any] | bytes, int, str, str]] = [
    (b"{", 400, "JSON", "half a body"),
    (b"[1]", 400, "body", "no object"),
    ({"input": []}, 400, "empty list", "nothing to encode"),
    ({"input": 7}, 400, "input", "a number"),
    ({"input": [1, 2]}, 400, "input", "token ids, of whatever tokenizer"),
    ({"input": ["a", None]}, 400, "input", "a hole in the list"),
    ({"input": {"text": "a"}}, 400, "input", "an object"),
    (b'{"model": "hashed-480", "input": "\\ud800"}', 400, "JSON", "a lone surrogate would end in the tokenizer"),
    ({"encoding_format": "hex"}, 400, "encoding_format", "an unknown format"),
    ({"dimensions": 64}, 400, "size 480 and no other", "vectors cut to 64 would fit no store"),
    ({"model": "text-embedding-v4"}, 404, "'hashed-480', not 'text-embedding-v4'", "another model's vectors"),
    ({"input": ["desk lamp", "!?"]}, 400, "text 1 has no word", "zeros would pass for a broken model"),
    (
        {"input": ["a", "x" * (MAX_CHARS + 1)]},
        413,
        "text 1 has 65,537 characters",
        "megabytes would hold up all others",
    ),
    ({"input": ["x"] * 201}, 413, "queue holds 200", "more texts than ever fit"),
]


@pytest.mark.parametrize(("body", "status", "said", "reason"), REFUSED)
def test_a_request_that_makes_no_sense_is_refused(
    open_server: Any, body: dict[str, Any] | bytes, status: int, said: str, reason: str
) -> None:
    if isinstance(body, bytes):
        answer = httpx.post(f"{open_server.url}/v1/embeddings", content=body, timeout=WAIT, trust_env=False)
    else:
        answer = ask(open_server.url, **body)
    assert answer.status_code == status, reason
    error = answer.json()["error"]
    assert said in error["message"] and error["code"] == status and error["type"] == "invalid_request_error", reason


def test_a_huge_body_is_refused(open_server: Any) -> None:
    assert ask(open_server.url, input=["x" * (33 * 2**20)]).status_code == 413
    assert ask(open_server.url, dimensions=480).status_code == 200  # and the server goes on


def test_health_names_the_model_and_what_waits(open_server: Any) -> None:
    answer = httpx.get(f"{open_server.url}/health", trust_env=False)
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "model": "hashed-480", "dim": 480, "waiting": 0, "error": None}
    assert httpx.get(f"{open_server.url}/docs", trust_env=False).status_code == 404


def test_a_client_that_goes_while_it_sends_is_no_fault(open_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("uvicorn").propagate = True
    address = httpx.URL(open_server.url)
    with socket.create_connection((address.host, address.port)) as client:
        client.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        time.sleep(0.3)  # it reads the body
    time.sleep(0.3)
    assert ask(open_server.url).status_code == 200
    assert not caplog.records, caplog.text


def test_a_full_queue_answers_429_and_the_kits_client_comes_again(gated: Gated) -> None:
    gated.hold()
    with served(gated, batch=4, capacity=6) as server, ThreadPoolExecutor(4) as pool:
        running = pool.submit(ask, server.url, input=TITLES[:4])
        gated.running()
        waiting = pool.submit(ask, server.url, input=TITLES[:5])
        while server.batcher.waiting < 5:
            time.sleep(0.01)
        assert httpx.get(f"{server.url}/health", trust_env=False).json()["waiting"] == 5  # and it answers while busy
        full = ask(server.url, input=TITLES[:2])
        assert full.status_code == 429 and full.headers["retry-after"] == "1"
        assert "5 texts are waiting" in full.json()["error"]["message"]
        client = EndpointEncoder(server.url, "hashed-480", retry_budget_s=WAIT, request_timeout_s=WAIT)
        retried = pool.submit(client.encode, TITLES[:3])
        with pytest.raises(NotYet):
            retried.result(0.3)  # it was told to wait
        gated.gate.set()
        np.testing.assert_allclose(retried.result(WAIT), encoder().encode(TITLES[:3]), atol=1e-6)
        assert running.result(WAIT).status_code == waiting.result(WAIT).status_code == 200


def test_texts_of_a_client_that_has_gone_are_not_encoded(gated: Gated) -> None:
    gated.hold()
    with served(gated, batch=4) as server, ThreadPoolExecutor(2) as pool:
        running = pool.submit(ask, server.url, input=TITLES[:1])
        gated.running()
        body = {"model": "hashed-480", "input": ["abandoned"]}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=0.3, trust_env=False)
        time.sleep(1.5)  # the server looks every half second
        gated.gate.set()
        assert running.result(WAIT).status_code == ask(server.url, input=["after"]).status_code == 200
    assert gated.batches == [TITLES[:1], ["after"]]


def test_a_failing_encoder_is_a_500_and_unhealthy_until_it_works_again(gated: Gated) -> None:
    with served(gated) as server:
        gated.fault = EncoderError("tiny gave NaN or infinity")
        failed = ask(server.url)
        assert failed.status_code == 500 and "gave NaN" in failed.json()["error"]["message"]
        health = httpx.get(f"{server.url}/health", trust_env=False)
        assert health.status_code == 503 and "gave NaN" in health.json()["error"]
        gated.fault = None
        assert ask(server.url).status_code == 200
        assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200


def test_stopping_answers_what_is_under_way(gated: Gated) -> None:
    gated.hold()
    with ThreadPoolExecutor(1) as pool:
        with served(gated) as server:
            under_way = pool.submit(ask, server.url)
            gated.running()
            server.should_exit = True
            time.sleep(0.5)  # it has stopped listening
            with pytest.raises(httpx.ConnectError):
                ask(server.url)
        assert under_way.result(WAIT).status_code == 200


KEYS: list[tuple[dict[str, str], int, str]] = [
    ({}, 401, "no key"),
    ({"Authorization": f"Bearer {KEY}"}, 200, "the key"),
    ({"Authorization": f"bearer {KEY}"}, 200, "the scheme's case is free"),
    ({"Authorization": f"Bearer {KEY}x"}, 401, "a longer one"),
    ({"Authorization": f"Bearer {KEY[:-1]}"}, 401, "a shorter one"),
    ({"Authorization": KEY}, 401, "no scheme"),
    ({"Authorization": f"Basic {KEY}"}, 401, "another scheme"),
    ({"Authorization": "Bearer"}, 401, "nothing behind the scheme"),
]


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[Any]:
    with served(Gated(), key=KEY) as server:
        yield server


@pytest.mark.parametrize(("headers", "status", "reason"), KEYS)
def test_the_key_is_demanded(keyed_server: Any, headers: dict[str, str], status: int, reason: str) -> None:
    body = {"model": "hashed-480", "input": "a"}
    answer = httpx.post(f"{keyed_server.url}/v1/embeddings", json=body, headers=headers, timeout=WAIT, trust_env=False)
    assert answer.status_code == status, reason
    large = {"model": "hashed-480", "input": ["lamp " * 1_000] * 200}
    answer = httpx.post(f"{keyed_server.url}/v1/embeddings", json=large, headers=headers, timeout=WAIT, trust_env=False)
    assert answer.status_code == status, "the refusal arrives although most of the body is still on its way"
    assert KEY not in answer.text
    assert httpx.get(f"{keyed_server.url}/health", trust_env=False).status_code == 200  # needs none


# --- the command ------------------------------------------------------------------------------------------------------


@contextmanager
def command(*arguments: str, **variables: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The server as a process of its own on a free port: the process and its URL."""
    with subprocess.Popen(
        [sys.executable, "scripts/train/embed_server.py", "--port", "0", *arguments],
        cwd=CHECKOUT, env={**clean_environment(), **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"(http://127\.0\.0\.1:\d+)/v1", line)
            assert found, line + process.communicate(timeout=60)[1]
            yield process, found[1]
        finally:
            process.kill()


def refused(*arguments: str, **variables: str) -> str:
    """The message of a server that ends with 2 before it serves."""
    done = subprocess.run(
        [sys.executable, "scripts/train/embed_server.py", *arguments],
        cwd=CHECKOUT, env={**clean_environment(), **variables}, text=True, capture_output=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("embed_server:") == 1
    return done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0_after_what_is_under_way(number: signal.Signals) -> None:
    with command("--model", "hashed", PLANNER_EMBED_API_KEY=KEY) as (process, url), ThreadPoolExecutor(1) as pool:
        assert ask(url).status_code == 401
        many = [f"{title} {n}" for n in range(10) for title in TITLES]  # 1,600 texts keep it busy for a while
        under_way = pool.submit(ask, url, KEY, input=many)
        while not httpx.get(f"{url}/health", trust_env=False).json()["waiting"] and not under_way.done():
            time.sleep(0.002)
        process.send_signal(number)
        answer = under_way.result(60)
        assert answer.status_code == 200 and len(answer.json()["data"]) == len(many)
        printed, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert printed.endswith("stopped\n") and "Traceback" not in errors
        assert KEY not in printed + errors and TITLES[0] not in printed + errors


def test_what_cannot_be_served_ends_it_with_2(open_server: Any, tmp_path: Path) -> None:
    port = open_server.url.rsplit(":", 1)[1]
    assert f"127.0.0.1:{port}" in refused("--model", "hashed", "--port", port)
    assert "port must be 0-65535" in refused("--model", "hashed", "--port", "65536")
    assert "PLANNER_EMBED_BACH" in refused("--model", "hashed", "--port", "0", PLANNER_EMBED_BACH="1")


# --- bge-m3's class ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bge_folder(tmp_path_factory.mktemp("bge") / "tiny-bge-m3", TITLES)


@pytest.mark.slow  # importing FlagEmbedding takes half a minute
def test_the_server_gives_flagembeddings_vectors_and_parity_passes(bge_folder: Path, tmp_path: Path) -> None:
    from FlagEmbedding import BGEM3FlagModel

    from swift_plugin.stores import EdgeStore

    model = ("--model", str(bge_folder), "--device", "cpu", "--max-length", "8", "--batch", "16")
    with command(*model) as (_, url):
        health = httpx.get(f"{url}/health", trust_env=False).json()
        assert (health["model"], health["dim"]) == ("tiny-bge-m3", SIZE)
        client = EndpointEncoder(url, "tiny-bge-m3", retry_budget_s=WAIT, request_timeout_s=WAIT)
        rows = client.encode(TITLES)
        reference = BGEM3FlagModel(str(bge_folder), use_fp16=False, devices="cpu")
        expected = reference.encode(TITLES, batch_size=len(TITLES) + 1, max_length=8)["dense_vecs"]
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        # the length cap: two special tokens, six words
        long = "Nordvik wide desk lamp for running shoes mat"
        short, other = "Nordvik wide desk lamp for running", "Nordvik wide desk lamp for hiking"
        answer = ask(url, model="tiny-bge-m3", input=[long, short, other, ""])
        capped = np.array([item["embedding"] for item in answer.json()["data"]])
        np.testing.assert_allclose(capped[0], capped[1], atol=1e-6)
        assert np.abs(capped[0] - capped[2]).max() > 1e-2 and capped[3].any()
        assert answer.json()["usage"]["prompt_tokens"] == 8 + 8 + 8 + 2

        made = FlagEncoder(str(bge_folder), device="cpu")
        store = EdgeStore.create(tmp_path / "store", SIZE, encoder="tiny-bge-m3")
        store.add(made.encode(TITLES), [{"title": title} for title in TITLES])
        store.finish()
        (tmp_path / "texts.txt").write_text("\n".join(TITLES), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "scripts/train/verify_embed_parity.py", str(bge_folder), f"{url}/v1#tiny-bge-m3"]
            + ["--texts", str(tmp_path / "texts.txt"), "--json", str(tmp_path / "parity.json")],
            cwd=CHECKOUT, env={**clean_environment(), "PLANNER_STORE_DIR": str(tmp_path / "store")},
            text=True, capture_output=True, timeout=240, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr  # the longest title has six words: nothing is cut
    report = json.loads((tmp_path / "parity.json").read_text(encoding="utf-8"))
    assert report["a"]["encoder"]["kind"] == "FlagEmbedding" and report["b"]["encoder"]["kind"] == "endpoint"


@pytest.mark.slow
def test_a_model_or_device_that_cannot_be_had_ends_it_with_2(bge_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlm-roberta", "hidden_size": 32}))
    assert "cannot load the embedding model" in refused("--model", str(tmp_path), "--port", "0")
    assert "takes 512 tokens at most" in refused("--model", str(bge_folder), "--max-length", "513", "--port", "0")
    far = refused("--model", str(bge_folder), "--device", "cuda:99", "--port", "0")
    assert "cuda:99 is not here" in far and "CUDA_VISIBLE_DEVICES" in far


@pytest.mark.slow
@pytest.mark.parametrize("damage", [damaged.truncated, damaged.lfs_pointer, damaged.empty])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "sparse_linear.pt"])
def test_damaged_weights_are_no_model(bge_folder: Path, tmp_path: Path, name: str, damage: damaged.Damage) -> None:
    import torch
    from safetensors.torch import load_file

    folder = shutil.copytree(bge_folder, tmp_path / "bge")
    if name == "pytorch_model.bin":
        torch.save(load_file(folder / "model.safetensors"), folder / name)
        (folder / "model.safetensors").unlink()
    damage(folder / name)
    with pytest.raises(EncoderError, match="cannot load the embedding model"):
        FlagEncoder(str(folder), device="cpu").encode(["a"])


# --- ranks and forks --------------------------------------------------------------------------------------------------

RANK = """
import sys
import torch
asked = []
torch.cuda.device_count = lambda: asked.append("count") or 4      # a box with four GPUs, as far as loading goes
torch.nn.Module.to = lambda self, device, *more: asked.append(device) or self
from FlagEmbedding import BGEM3FlagModel
from swift_plugin.flag_encoder import FlagEncoder
made = FlagEncoder(sys.argv[1])
assert made.dim == 32 and made.encode([]).shape == (0, 32)
assert asked == [], asked                                          # nothing was asked of CUDA so far
model = made._model.get()
print([str(device) for device in asked if device != "count"], model.target_devices, model.use_fp16)
"""


@pytest.mark.slow
def test_a_rank_loads_on_its_own_gpu_and_on_no_other(bge_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RANK, str(bge_folder)], cwd=CHECKOUT, env={**clean_environment(), "LOCAL_RANK": "2"},
        text=True, capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "['cuda:2'] ['cuda:2'] True"


FORK = """
import os, sys
import torch
def touched(*args, **kwargs): raise AssertionError("CUDA was touched before the fork")
real = torch.cuda._lazy_init, torch.cuda.device_count
torch.cuda._lazy_init = torch.cuda.device_count = touched
from swift_plugin.flag_encoder import FlagEncoder
made = FlagEncoder(sys.argv[1])
assert made.dim == 32 and made.encode([]).shape == (0, 32)
reader, writer = os.pipe()
child = os.fork()
torch.cuda._lazy_init, torch.cuda.device_count = real
if child == 0:
    os.write(writer, made.encode(["Nordvik desk lamp"]).tobytes())
    os._exit(0)
os.close(writer)
with os.fdopen(reader, "rb") as pipe:
    rows = pipe.read()
assert os.waitpid(child, 0)[1] == 0
assert made._model._value is None                                  # the child's model is the child's
print(rows == made.encode(["Nordvik desk lamp"]).tobytes(), len(rows))
"""


@pytest.mark.slow
def test_nothing_of_cuda_is_touched_before_a_fork(bge_folder: Path) -> None:
    environ = {**clean_environment(), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(bge_folder)], cwd=CHECKOUT, env=environ, text=True, capture_output=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == f"True {SIZE * 4}"
