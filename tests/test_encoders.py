"""The three encoders: what they promise the store, and what they refuse to pass on."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embeddings_server import EmbeddingsServer
from faulty_http import Fault
from small_world import TITLES, encoder, reward
from tiny_bge import build_bge_folder

from swift_plugin.encoders import (
    EncoderError,
    EndpointEncoder,
    HashedEncoder,
    make_encoder,
)
from swift_plugin.flag_encoder import FlagEncoder, chosen_device, flag_device
from swift_plugin.settings import CHECKOUT, Settings

KEY = "s3cret-key"
TEXTS = ["waterproof running shoes", "desk lamp", "跑鞋 waterproof", "yoga mat"]


def near(query: str, titles: Sequence[str] = TITLES, count: int = 20) -> list[str]:
    made = encoder()
    similarity = made.encode(titles) @ made.encode([query])[0]
    return [titles[i] for i in np.argsort(-similarity, kind="stable")[:count]]


# --- hashed ---------------------------------------------------------------------------------------------------


def test_rows_are_unit_float32() -> None:
    rows = encoder().encode(TITLES)
    assert rows.shape == (len(TITLES), HashedEncoder.DIM) and rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("text", ["", "  ", "!?", "——"])
def test_a_text_without_words_is_a_zero_row(text: str) -> None:
    rows = encoder().encode(["desk lamp", text])
    assert rows[0].any() and not rows[1].any() and np.isfinite(rows).all()


def test_no_texts_are_no_rows() -> None:
    assert encoder().encode([]).shape == (0, HashedEncoder.DIM)


def test_the_same_text_gives_the_same_bytes_in_every_process() -> None:
    code = (
        "import sys; from small_world import encoder; from test_encoders import TEXTS;"
        "sys.stdout.buffer.write(encoder().encode(TEXTS).tobytes())"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(Path(__file__).parent)])}
    for seed in ("1", "2"):  # hash() would differ between these
        environ["PYTHONHASHSEED"] = seed
        result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True)
        assert result.stdout == encoder().encode(TEXTS).tobytes()


def test_a_row_does_not_depend_on_its_batch_or_on_the_cache() -> None:
    small = encoder()
    small.CACHED_WORDS = 3  # type: ignore[misc]
    together = encoder().encode(TITLES)
    assert (small.encode(TITLES) == together).all()
    assert (np.concatenate([encoder().encode([title]) for title in TITLES]) == together).all()
    many = TITLES * 30  # more than one chunk
    assert (encoder().encode(many)[-len(TITLES) :] == together).all()


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("Running Shoes", "running shoes", "case"),
        ("running shoe", "running shoes", "plural"),
        ("ｒｕｎｎｉｎｇ shoes", "running shoes", "width"),
        ("running-shoes!", "running shoes", "punctuation"),
        ("shoes running", "running shoes", "order"),
    ],
)
def test_texts_with_the_same_words_are_one_vector(one: str, other: str, why: str) -> None:
    np.testing.assert_allclose(*encoder().encode([one, other]), atol=1e-6, err_msg=why)


def test_titles_with_both_words_come_before_those_with_one() -> None:
    found = near("waterproof running shoes")
    assert set(found[:2]) == {"Nordvik waterproof running shoes", "Alpra waterproof running shoes"}
    assert all("waterproof shoelaces for running shoes" in title for title in found[2:4])
    assert all("waterproof" in title or "running" in title for title in found)
    assert all(title.endswith("desk lamp") for title in near("desk lamp", count=16))


def test_an_inflected_word_lands_near() -> None:
    assert all("waterproof" in title for title in near("waterproofing", count=10))


def test_a_chinese_sentence_is_near_to_nothing() -> None:
    made = encoder()
    titles, queries = made.encode(TITLES), made.encode(["想买一双防水的跑鞋，预算八百以内", "desk lamp"])
    chinese, english = (titles @ queries.T).max(axis=0)
    assert chinese < 0.3 < 0.6 < english
    assert (titles < 0).any()  # signs let collisions cancel out


def test_twenty_thousand_titles_take_seconds() -> None:
    started = time.process_time()
    encoder().encode([f"{title} {i}" for i in range(125) for title in TITLES])
    assert time.process_time() - started < 5  # seconds of one core; measured: 0.8


# --- endpoint -------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[EmbeddingsServer]:
    with EmbeddingsServer() as running:
        yield running


def endpoint(server: EmbeddingsServer | str, **options: Any) -> EndpointEncoder:
    url = server if isinstance(server, str) else server.url
    options = {"retry_budget_s": 10.0, "request_timeout_s": 5.0, **options}
    return EndpointEncoder(url, options.pop("model", "bge-m3"), options.pop("api_key", None), **options)


def test_rows_are_put_back_in_the_order_of_their_index(server: EmbeddingsServer) -> None:
    rows = endpoint(server).encode(TITLES[:64])
    np.testing.assert_allclose(rows, encoder().encode(TITLES[:64]), atol=1e-6)
    assert rows.dtype == np.float32
    (request,) = server.requests
    assert (request.method, request.path, request.body["model"]) == ("POST", "/v1/embeddings", "bge-m3")


def test_long_lists_go_in_batches(server: EmbeddingsServer) -> None:
    rows = endpoint(server, batch=50).encode(TITLES)
    np.testing.assert_allclose(rows, encoder().encode(TITLES), atol=1e-6)
    assert [len(request.body["input"]) for request in server.requests] == [50, 50, 50, 10]


def test_the_size_is_asked_once_and_no_texts_ask_nothing_more(server: EmbeddingsServer) -> None:
    made = endpoint(server)
    assert made.dim == made.dim == 480
    assert made.encode([]).shape == (0, 480)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("http://h:1", "http://h:1/v1/embeddings"),
        ("http://h:1/", "http://h:1/v1/embeddings"),
        ("http://h:1/v1", "http://h:1/v1/embeddings"),
        ("http://h:1/v1/", "http://h:1/v1/embeddings"),
        ("http://h:1/v1/embeddings", "http://h:1/v1/embeddings"),
        ("https://h/compatible-mode/v1", "https://h/compatible-mode/v1/embeddings"),
    ],
)
def test_the_address_may_be_given_in_any_usual_form(given: str, asked: str) -> None:
    assert endpoint(given).url == asked


def spoil(where: Callable[[list[dict[str, Any]]], Any]) -> Callable[[dict[str, Any]], Any]:
    def change(answer: dict[str, Any]) -> None:
        answer["data"].sort(key=lambda item: item["index"])
        where(answer["data"])

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (spoil(lambda data: data.pop()), "3 vectors with indexes .0, 1, 2. for 4 texts"),
        (spoil(lambda data: data.append({**data[0], "index": 4})), "5 vectors"),
        (spoil(lambda data: data[1].update(index=0)), "4 vectors with indexes .0, 2, 3. for 4"),
        (spoil(lambda data: data[3].update(index=9)), "no longer belong together"),
        (spoil(lambda data: data[2].pop("index")), "index"),
        (spoil(lambda data: data[2].pop("embedding")), "embedding"),
        (spoil(lambda data: data[2].update(embedding=[0.5])), "sizes .1, 480."),
        (spoil(lambda data: [item.update(embedding=[]) for item in data]), "sizes .0."),
        (spoil(lambda data: [item.update(embedding="AAAA") for item in data]), "sizes .-1."),
        (spoil(lambda data: data[2]["embedding"].__setitem__(5, "x")), "not numbers"),
        (spoil(lambda data: data[2]["embedding"].__setitem__(5, float("nan"))), "NaN"),
        (spoil(lambda data: data[2]["embedding"].__setitem__(5, 1e39)), "infinity"),
        (spoil(lambda data: data[2].update(embedding=[0.0] * 480)), "zeros"),
        (spoil(lambda data: data[2].update(embedding=[1e-25] * 480)), "zeros"),  # their squares vanish in float32
        (spoil(lambda data: data[2].update(embedding=[1e38] * 480)), "zeros"),  # their sum does not fit
        (lambda answer: {"error": "busy"}, "without data/index/embedding"),
        (lambda answer: [1], "without data/index/embedding"),
        (lambda answer: "<html>welcome</html>", "no JSON"),
    ],
)
def test_an_answer_that_cannot_be_trusted_raises_at_once(change: Any, match: str) -> None:
    with EmbeddingsServer(change=change) as server:
        with pytest.raises(EncoderError, match=match):
            endpoint(server).encode(TEXTS)
        assert len(server.requests) == 1


def test_another_size_than_before_raises(server: EmbeddingsServer) -> None:
    made = endpoint(server)
    made.encode(TEXTS)
    server.change = spoil(lambda data: [item["embedding"].append(0.5) for item in data])
    with pytest.raises(EncoderError, match="size 481, before 480"):
        made.encode(TEXTS)


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(status=503), Fault(status=500)],
        [Fault(status=429, headers=(("Retry-After", "1"),))],
        [Fault(reset=True)],
        [Fault(cut=True)],
        [Fault(stall_s=1.4)],
        [Fault(status=200, headers=(("Content-Encoding", "gzip"),))],
    ],
    ids=["5xx", "429", "reset", "cut", "stall", "garbled"],
)
def test_a_fault_that_passes_changes_nothing(server: EmbeddingsServer, faults: list[Fault]) -> None:
    server.fail(*faults)
    stalls = any(fault.stall_s for fault in faults)
    rows = endpoint(server, request_timeout_s=1.0 if stalls else 5.0).encode(TEXTS)
    np.testing.assert_allclose(rows, encoder().encode(TEXTS), atol=1e-6)
    assert len(server.requests) == len(faults) + 1 or stalls  # a slow machine may need another try then


@pytest.mark.parametrize("endless", [Fault(status=503), Fault(stall_s=30)], ids=["503", "stall"])
def test_a_fault_that_stays_raises_within_the_budget(server: EmbeddingsServer, endless: Fault) -> None:
    server.fail(*[endless] * 50)
    started = time.monotonic()
    with pytest.raises(EncoderError, match=f"{server.url}.*bge-m3.*budget 1.2 s.*PLANNER_EMBED_URL"):
        endpoint(server, retry_budget_s=1.2).encode(TEXTS)
    assert time.monotonic() - started < 10.0  # 1.2 to 2.2 s on a quiet machine; the stall alone is 30


def test_a_server_that_is_gone_raises() -> None:
    with EmbeddingsServer() as server:
        pass
    with pytest.raises(EncoderError, match="ConnectError"):
        endpoint(server, retry_budget_s=0.3).encode(TEXTS)


def test_a_wrong_key_is_refused_at_once_and_stands_in_no_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with EmbeddingsServer(api_key=KEY) as server:
        assert endpoint(server, api_key=KEY).dim == 480
        server.requests.clear()
        with pytest.raises(EncoderError, match="401.*PLANNER_EMBED_API_KEY") as raised:
            endpoint(server, api_key="wr0ng-key").encode(TEXTS)
        assert len(server.requests) == 1
        assert "wr0ng-key" not in str(raised.value)  # although the server quotes it
        server.fail(Fault(status=401, body="x" * 195 + "wr0ng-key"))  # across the end of what is shown
        with pytest.raises(EncoderError, match="401") as raised:
            endpoint(server, api_key="wr0ng-key").encode(TEXTS)
        assert "wr0" not in str(raised.value)
    assert KEY not in caplog.text


def test_a_wrong_path_or_too_large_a_batch_says_so(server: EmbeddingsServer) -> None:
    with pytest.raises(EncoderError, match="404.*PLANNER_EMBED_URL"):
        endpoint(server.url + "/v2").encode(TEXTS)
    server.fail(Fault(status=422, body="batch size 4 > maximum allowed batch size 2"))
    with pytest.raises(EncoderError, match="422.*PLANNER_EMBED_BATCH"):
        endpoint(server).encode(TEXTS)


def test_loopback_traffic_ignores_a_proxy(server: EmbeddingsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert endpoint(server, retry_budget_s=0.0).dim == 480


# --- FlagEmbedding --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bge_folder(tmp_path_factory.mktemp("bge") / "tiny-bge-m3", [*TITLES, *TEXTS])


@pytest.mark.slow  # importing FlagEmbedding takes half a minute
def test_flag_embedding_gives_the_models_dense_vectors(bge_folder: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    made = FlagEncoder(str(bge_folder))
    assert (made.name, made.dim) == ("tiny-bge-m3", 32)
    texts = TITLES[:70]  # more than one batch
    rows = made.encode(texts)
    assert rows.shape == (70, 32) and rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-5)
    # bge-m3's dense vector is the normalised hidden state of the first token
    tokens = AutoTokenizer.from_pretrained(bge_folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(bge_folder)(**tokens).last_hidden_state[:, 0]
    expected = torch.nn.functional.normalize(hidden, dim=-1).numpy()
    np.testing.assert_allclose(rows, expected, atol=1e-2 if torch.cuda.is_available() else 1e-5)  # fp16 on a GPU
    assert made.encode([]).shape == (0, 32)


def test_flag_embedding_loads_nothing_before_it_is_needed() -> None:
    code = (
        "import sys; from swift_plugin.flag_encoder import FlagEncoder;"
        "FlagEncoder('bge-m3');"
        "print([name for name in ('torch', 'FlagEmbedding', 'transformers') if name in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_flag_embedding_names_a_model_it_cannot_load(tmp_path: Path) -> None:
    pytest.importorskip("FlagEmbedding", reason="the extra `bge` is not installed")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "xlm-roberta", "hidden_size": 32}))
    made = FlagEncoder(str(tmp_path))
    assert made.dim == 32
    with pytest.raises(EncoderError, match="cannot load.*PLANNER_EMBED_MODEL"):
        made.encode(["a"])
    with pytest.raises(EncoderError, match="cannot load.*PLANNER_EMBED_URL"):
        _ = FlagEncoder(str(tmp_path / "none")).dim


@pytest.mark.parametrize(
    ("gpus", "local_rank", "device"),
    [(0, None, "cpu"), (0, "3", "cpu"), (1, None, "cuda:0"), (4, "0", "cuda:0"), (4, "3", "cuda:3")],
)
def test_each_rank_encodes_on_its_own_device(gpus: int, local_rank: str | None, device: str) -> None:
    assert flag_device(gpus, local_rank) == device


def test_a_rank_without_a_gpu_of_its_own_is_refused() -> None:
    with pytest.raises(EncoderError, match="LOCAL_RANK is 4, but 4 GPUs"):
        flag_device(4, "4")


DEVICES: list[tuple[str | None, str | None, str, str]] = [
    (None, None, "cuda:0", "nothing asked: the first GPU"),
    (None, "1", "cuda:1", "nothing asked: the rank's own"),
    ("cpu", "1", "cpu", "the CPU although there are GPUs"),
    ("cuda", "1", "cuda:0", "what is asked for wins over the rank"),
    ("cuda:1", None, "cuda:1", "one GPU by its number"),
]


@pytest.mark.parametrize(("asked", "local_rank", "device", "reason"), DEVICES)
def test_the_device_asked_for_is_taken(asked: str | None, local_rank: str | None, device: str, reason: str) -> None:
    assert chosen_device(asked, 2, local_rank) == device, reason


@pytest.mark.parametrize(
    ("asked", "gpus", "said"),
    [
        ("cuda", 0, "cuda is not here .0 GPUs"),
        ("cuda:2", 2, "cuda:2 is not here .2 GPUs.*CUDA_VISIBLE_DEVICES"),
        ("cuda:-1", 2, "no device: give cpu, cuda or cuda:N"),
        ("gpu", 2, "no device"),
        ("", 2, "no device"),
    ],
)
def test_a_device_that_is_not_here_is_refused(asked: str, gpus: int, said: str) -> None:
    with pytest.raises(EncoderError, match=said):
        chosen_device(asked, gpus, None)


@pytest.mark.slow
def test_a_broken_model_raises_and_names_itself(bge_folder: Path) -> None:
    import torch

    made = FlagEncoder(str(bge_folder), device="cpu")
    layer = made._model.get().model.model.encoder.layer[0].output
    with torch.no_grad():
        layer.dense.weight.fill_(float("nan"))
    with pytest.raises(EncoderError, match="tiny-bge-m3 gave NaN"):
        made.encode(["desk lamp"])
    layer.dense = torch.nn.Linear(1, 32)  # what CUDA raises out of memory is a RuntimeError as well
    with pytest.raises(EncoderError, match="tiny-bge-m3 cannot encode 1 texts of up to 4 tokens on cpu.*--batch"):
        made.encode(["desk lamp"])


# --- which one ------------------------------------------------------------------------------------------------


def test_the_settings_choose_the_encoder() -> None:
    hashed = make_encoder(Settings.from_env({}))
    assert isinstance(hashed, HashedEncoder)
    assert (hashed.encode(TEXTS) == HashedEncoder(reward().words).encode(TEXTS)).all()
    url = make_encoder(Settings.from_env({"PLANNER_EMBED_URL": "http://127.0.0.1:1"}))
    assert isinstance(url, EndpointEncoder) and url.name == "bge-m3"
    flag = make_encoder(Settings.from_env({"PLANNER_EMBED_MODEL": "/models/bge-m3"}))
    assert isinstance(flag, FlagEncoder) and flag.name == "bge-m3"
