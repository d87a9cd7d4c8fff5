"""Both stores: the embedded one, and the real qdrant-client over real HTTP with every fault a server can have."""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_edge as edge
import qdrant_server
from faulty_http import Fault
from qdrant_server import QdrantServer, serve_folder
from small_world import TEXT, TITLES, build_store, encoder, golden, plan, reward

from swift_plugin.retry import is_loopback
from swift_plugin.rollout_env import RolloutEnv
from swift_plugin.settings import CHECKOUT, Settings
from swift_plugin.stores import EdgeStore, QdrantStore, StoreError, StoreInfo, check_store, make_store

KEY = "s3cret-key"
QUERIES = ("waterproof running shoes", "desk lamp", "yoga mat", "vegan leather")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_store(tmp_path_factory.mktemp("world") / "catalog.edge")


@pytest.fixture
def server(folder: Path) -> Iterator[QdrantServer]:
    with serve_folder(folder) as running:
        yield running


def client(server: QdrantServer | str, **options: Any) -> QdrantStore:
    url = server if isinstance(server, str) else server.url
    options = {"collection": "products", "retry_budget_s": 10.0, "request_timeout_s": 5.0, **options}
    return QdrantStore(url, options.pop("collection"), options.pop("api_key", None), **options)


def vectors() -> Any:
    return encoder().encode(QUERIES)


def blank_shard(path: Path, named: str = "dense", size: int = 4, payloads: list[Any] | None = None) -> Any:
    """A shard made without the kit, for collections the kit would not make."""
    path.mkdir()
    params = edge.EdgeVectorParams(size=size, distance=edge.Distance.Cosine)
    shard = edge.EdgeShard.create(str(path), edge.EdgeConfig(vectors={named: params}, wal_enabled=False))
    points = [edge.Point(i, {named: [1.0] * size}, payload) for i, payload in enumerate(payloads or [])]
    shard.update(edge.UpdateOperation.upsert_points(points))
    return shard


# --- what the client sends, and what comes back ---------------------------------------------------------------


def test_a_batch_is_one_request_for_titles_by_the_named_vector(server: QdrantServer) -> None:
    client(server).search_batch(vectors(), 20)
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/collections/products/points/query/batch")
    assert [search["using"] for search in request.body["searches"]] == ["dense"] * 4
    assert [search["limit"] for search in request.body["searches"]] == [20] * 4
    assert [search["with_payload"] for search in request.body["searches"]] == [["title"]] * 4
    np.testing.assert_allclose(request.body["searches"][1]["query"]["nearest"], vectors()[1], rtol=1e-6)
    assert request.query == "timeout=5"
    assert "api-key" not in request.headers


def test_results_stand_in_the_order_of_the_queries(server: QdrantServer) -> None:
    found = client(server).search_batch(vectors(), 4)
    assert [titles[0].removeprefix("Nordvik ").removeprefix("Alpra ") for titles in found[:1]] == [
        "waterproof running shoes"
    ]
    assert all(title.endswith("desk lamp") for title in found[1])
    assert all(title.endswith("yoga mat") for title in found[2])
    reverse = client(server).search_batch(vectors()[::-1].copy(), 4)
    assert reverse == found[::-1]


def test_both_stores_give_the_same_titles(server: QdrantServer, folder: Path) -> None:
    many = encoder().encode(TITLES * 2)  # 320 queries: more than one request
    over_http = client(server).search_batch(many, 20)
    assert len(server.requests) == 2
    assert over_http == EdgeStore(folder).search_batch(many, 20)
    assert [len(titles) for titles in over_http] == [20] * 320


def test_payloads_hold_the_title_and_the_fields_asked_for(tmp_path: Path) -> None:
    """One request's payload says where the shop got it; a point without a field simply lacks it."""
    payloads = [
        {"title": "a", "price": 4.5, "currency": "USD", "kind": "main"},
        {"title": "b", "price": None, "currency": None},
        {"title": "c"},
    ]
    shard = blank_shard(tmp_path / "priced", payloads=payloads)
    fields, query = ("price", "currency"), np.ones((1, 4), np.float32)
    with QdrantServer(shard, vectors={"dense": {"size": 4, "distance": "Cosine"}}) as running:
        ((over_http),) = client(running).search_payloads(query, 3, fields)
        (request,) = running.requests
        assert [search["with_payload"] for search in request.body["searches"]] == [["title", "price", "currency"]]
    shard.flush()
    shard.close()
    (embedded,) = EdgeStore(tmp_path / "priced").search_payloads(query, 3, fields)
    expected = [{name: value for name, value in one.items() if name != "kind"} for one in payloads]
    assert sorted(embedded, key=lambda one: one["title"]) == expected
    assert sorted(over_http, key=lambda one: one["title"]) == expected


def test_payloads_and_titles_are_one_search(folder: Path) -> None:
    store = EdgeStore(folder)
    found = store.search_payloads(vectors(), 20, ("price",))
    assert [[one["title"] for one in each] for each in found] == store.search_batch(vectors(), 20)


def test_no_queries_are_no_request(server: QdrantServer) -> None:
    assert client(server).search_batch(vectors()[:0], 20) == []
    assert server.requests == []


@pytest.mark.parametrize("build", [lambda folder, server: EdgeStore(folder), lambda folder, server: client(server)])
def test_a_store_describes_itself(folder: Path, server: QdrantServer, build: Any) -> None:
    store = build(folder, server)
    info = store.describe()
    assert (info.points, info.vector_size) == (len(TITLES), encoder().dim)
    assert check_store(store, encoder()) == info
    store.close()
    assert store.describe() == info  # closing releases, it does not end


def test_the_settings_choose_the_store(folder: Path, server: QdrantServer) -> None:
    environ = {"QDRANT_URL": server.url, "PLANNER_STORE_DIR": str(folder), "QDRANT_COLLECTION": "products"}
    over_http = make_store(Settings.from_env(environ))
    assert isinstance(over_http, QdrantStore) and over_http.describe().kind == "qdrant"
    embedded = make_store(Settings.from_env({"PLANNER_STORE_DIR": str(folder)}))
    assert isinstance(embedded, EdgeStore) and embedded.describe().encoder == encoder().name


# --- keys and proxies -----------------------------------------------------------------------------------------


def test_the_right_key_is_let_in_and_a_wrong_or_missing_one_is_refused_at_once(folder: Path) -> None:
    with serve_folder(folder, api_key=KEY) as server:
        assert client(server, api_key=KEY).describe().points == len(TITLES)
        for key in ("wr0ng-key", None):
            server.requests.clear()
            with pytest.raises(StoreError, match="QDRANT_API_KEY") as raised:
                client(server, api_key=key).search_batch(vectors(), 20)
            assert len(server.requests) == 1  # no retry makes a wrong key right
            assert KEY not in str(raised.value) and "wr0ng-key" not in str(raised.value)


def test_no_message_or_log_line_holds_the_key(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serve_folder(folder, api_key=KEY) as server:
        server.fail(Fault(status=503, body=f"your key {KEY}"), Fault(status=400, body=f"your key {KEY}"))
        with pytest.raises(StoreError, match=r"your key \*\*\*") as raised:
            client(server, api_key=KEY).search_batch(vectors(), 20)
    assert KEY not in str(raised.value) and KEY not in repr(Settings(qdrant_api_key=KEY))
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("swift_plugin")]
    assert any("503" in message for message in ours) and KEY not in "".join(ours)


def test_loopback_traffic_ignores_a_proxy(server: QdrantServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with QdrantServer(None) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        before = set(threading.enumerate())
        assert client(server, retry_budget_s=0.0, api_key=KEY).describe().points == len(TITLES)
        for thread in set(threading.enumerate()) - before:
            thread.join(5)  # qdrant-client's version check would run in a thread of its own
    assert proxy.requests == []


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://localhost:6333", True),
        ("http://LOCALHOST:6333", True),
        ("http://127.0.0.1:6333", True),
        ("http://127.8.9.1", True),
        ("http://[::1]:6333", True),
        ("http://10.0.0.2:6333", False),
        ("http://localhost.example.com", False),
        ("https://qdrant.example.com", False),
    ],
)
def test_loopback(url: str, loopback: bool) -> None:
    assert is_loopback(url) is loopback


# --- failures that time may cure ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(status=503), Fault(status=503)],
        [Fault(status=500), Fault(status=502), Fault(status=504)],
        [Fault(status=429)],
        [Fault(status=429, headers=(("Retry-After", "1"),))],
        [Fault(status=429, headers=(("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT"),))],
        [Fault(reset=True), Fault(reset=True)],
        [Fault(cut=True)],
        [Fault(stall_s=1.4)],
    ],
    ids=["503", "5xx", "429", "retry-after", "retry-after-date", "reset", "cut", "stall"],
)
def test_a_fault_that_passes_changes_no_reward(server: QdrantServer, faults: list[Fault]) -> None:
    stalls = any(fault.stall_s for fault in faults)

    def rewards() -> Any:
        store = client(server, request_timeout_s=1.0 if stalls else 5.0)
        env = RolloutEnv(reward(), encoder(), store, weights=reward().weights_from_env({}), gates=())
        batch = [plan(query) for query in QUERIES]
        columns = {"ids": list("abcd"), "splits": ["train"] * 4, "step": 1}
        return env.score(batch, [golden()] * 4, [TEXT] * 4, **columns)

    undisturbed = rewards()
    server.requests.clear()
    server.fail(*faults)
    assert rewards() == undisturbed
    assert len(server.requests) == len(faults) + 1 or stalls  # a slow machine may need another try then


def test_retry_after_is_respected(server: QdrantServer) -> None:
    server.fail(Fault(status=429, headers=(("Retry-After", "1"),)))
    started = time.monotonic()
    client(server).search_batch(vectors(), 20)
    assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize("endless", [Fault(status=503), Fault(reset=True), Fault(stall_s=30)], ids=str)
def test_a_fault_that_stays_raises_within_the_budget(server: QdrantServer, endless: Fault) -> None:
    server.fail(*[endless] * 50)
    store = client(server, api_key=KEY, retry_budget_s=1.5)
    started = time.monotonic()
    with pytest.raises(StoreError) as raised:
        store.search_batch(vectors(), 20)
    assert time.monotonic() - started < 10.0  # 1.5 to 2.5 s on a quiet machine; the stall alone is 30
    message = str(raised.value)
    for part in (server.url, "'products'", "budget 1.5 s", "PLANNER_RETRY_SECONDS", "QDRANT_URL"):
        assert part in message
    assert KEY not in message


def test_refused_connections_raise_and_a_server_that_comes_up_in_time_is_found(folder: Path) -> None:
    port = free_port()
    with pytest.raises(StoreError, match=f"127.0.0.1:{port}.*ConnectError.*Ways out"):
        client(f"http://127.0.0.1:{port}", retry_budget_s=0.6).search_batch(vectors(), 20)
    store = client(f"http://127.0.0.1:{port}", retry_budget_s=20.0)
    command = [sys.executable, str(Path(qdrant_server.__file__)), "--store", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(CHECKOUT)})
    try:
        assert store.search_batch(vectors(), 4)[1][0].endswith("desk lamp")
    finally:
        process.kill()
        process.wait()


def test_a_budget_of_zero_is_one_try(server: QdrantServer) -> None:
    server.fail(Fault(status=503))
    with pytest.raises(StoreError, match="1 tries"):
        client(server, retry_budget_s=0.0).search_batch(vectors(), 20)
    assert len(server.requests) == 1


def test_an_outage_never_becomes_a_score(server: QdrantServer, tmp_path: Path) -> None:
    store = client(server, retry_budget_s=0.3)
    env = RolloutEnv(reward(), encoder(), store, weights=reward().weights_from_env({}), gates=())
    server.fail(*[Fault(status=503)] * 50)
    columns: dict[str, Any] = {"ids": ["a", "b"], "splits": ["train"] * 2, "step": 1}
    with pytest.raises(StoreError):
        env.score(["junk", plan("desk lamp")], [golden()] * 2, [TEXT] * 2, **columns)
    assert env.last_rows == []
    server.faults.clear()
    scores = env.score(["junk", plan("desk lamp")], [golden()] * 2, [TEXT] * 2, **columns)
    assert len(env.last_rows[1]["titles"]) == 20 and scores[0].total == -1.0  # the failure was not cached


# --- failures that no retry cures -----------------------------------------------------------------------------


def refused(store: QdrantStore, server: QdrantServer, match: str, rows: Any = None) -> None:
    server.requests.clear()
    with pytest.raises(StoreError, match=match):
        store.search_batch(vectors() if rows is None else rows, 20)
    assert len(server.requests) == 1


def test_errors_of_ours_raise_at_once_and_say_what_to_do(server: QdrantServer) -> None:
    refused(client(server, collection="prodcuts"), server, "'prodcuts'.*missing.*QDRANT_COLLECTION")
    refused(client(server), server, "dimension error.*expected dim: 480, got 3", np.ones((1, 3), np.float32))
    server.fail(Fault(status=413, body="too large"))
    refused(client(server), server, "HTTP 413 too large")
    server.fail(Fault(status=200, body="<html>welcome</html>"))
    refused(client(server), server, "like Qdrant.*QDRANT_URL")
    server.fail(Fault(status=200, body='{"status": "ok"}'))
    refused(client(server), server, "like Qdrant")
    server.fail(Fault(status=200, body='{"result": [{"title": "a"}]}'))
    refused(client(server), server, "like Qdrant")


def test_a_collection_without_the_named_vector_is_refused(tmp_path: Path) -> None:
    shard = blank_shard(tmp_path / "other", named="text", payloads=[{"title": "a"}])
    with QdrantServer(shard, vectors={"text": {"size": 4, "distance": "Cosine"}}) as server:
        refused(client(server), server, "'dense'", np.ones((1, 4), np.float32))
        with pytest.raises(StoreError, match="no vector named 'dense'"):
            check_store(client(server), encoder())
    with QdrantServer(shard, vectors={"size": 4, "distance": "Cosine"}) as server:  # one unnamed vector
        with pytest.raises(StoreError, match="no vector named 'dense'"):
            check_store(client(server), encoder())


def test_a_short_answer_raises(server: QdrantServer) -> None:
    server.drop_results = 1
    refused(client(server), server, "3 results for 4 queries")


@pytest.mark.parametrize("payload", [None, {}, {"title": None}, {"title": 5}])
def test_a_point_without_a_title_raises_and_is_named(tmp_path: Path, payload: Any) -> None:
    shard = blank_shard(tmp_path / "untitled", payloads=[payload])
    with QdrantServer(shard, vectors={"dense": {"size": 4, "distance": "Cosine"}}) as server:
        refused(client(server), server, "point 0 has no title", np.ones((1, 4), np.float32))
    shard.flush()
    shard.close()
    with pytest.raises(StoreError, match="point 0 has no title"):
        EdgeStore(tmp_path / "untitled").search_batch(np.ones((1, 4), np.float32), 20)


# --- preflight ------------------------------------------------------------------------------------------------


def test_preflight_over_http(server: QdrantServer, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="'nothing'.*missing"):
        check_store(client(server, collection="nothing"), encoder())
    server.vectors = {"dense": {"size": 1024, "distance": "Cosine"}}
    with pytest.raises(StoreError, match="size 1024, the encoder hashed-480 makes 480"):
        check_store(client(server), encoder())
    server.vectors = {"dense": {"size": 480, "distance": "Manhattan"}}
    with pytest.raises(StoreError, match="compares vectors by Manhattan"):
        check_store(client(server), encoder())
    shard = blank_shard(tmp_path / "empty")
    with QdrantServer(shard, vectors={"dense": {"size": 4, "distance": "Cosine"}}) as empty:
        with pytest.raises(StoreError, match="is empty"):
            check_store(client(empty), encoder())
    server.fail(*[Fault(status=503)] * 50)
    with pytest.raises(StoreError, match="does not answer"):
        check_store(client(server, retry_budget_s=0.3), encoder())


def test_preflight_of_the_embedded_store(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StoreError, match=r"no embedded store.*build_demo_index.py.*PLANNER_STORE_DIR"):
        check_store(EdgeStore(tmp_path / "none"), encoder())
    blank_shard(tmp_path / "empty").close()
    with pytest.raises(StoreError, match="is empty.*build_demo_index"):
        check_store(EdgeStore(tmp_path / "empty"), encoder())
    blank_shard(tmp_path / "small", payloads=[{"title": "a"}]).close()
    with pytest.raises(StoreError, match="size 4, the encoder hashed-480 makes 480"):
        check_store(EdgeStore(tmp_path / "small"), encoder())
    blank_shard(tmp_path / "other", named="text", payloads=[{"title": "a"}]).close()
    with pytest.raises(StoreError, match="no vector named 'dense'"):
        check_store(EdgeStore(tmp_path / "other"), encoder())
    namesake = encoder()
    namesake.name = "minilm"
    with pytest.raises(StoreError, match="filled by the encoder hashed-480, now minilm"):
        check_store(EdgeStore(folder), namesake)


def test_a_large_store_is_indexed_and_answers_the_same(folder: Path, tmp_path: Path) -> None:
    class Large(EdgeStore):
        EXACT_UP_TO = 100

    made = encoder()
    store = Large.create(tmp_path / "large.edge", made.dim, encoder=made.name)
    store.add(made.encode(TITLES), [{"title": title} for title in TITLES])
    store.finish()
    found = store.search_batch(made.encode(TITLES), 1)
    assert found == EdgeStore(folder).search_batch(made.encode(TITLES), 1) == [[title] for title in TITLES]


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    folder = build_store(tmp_path / "catalog.edge", TITLES[:4])
    (folder / "edge_config.json").write_text("{")
    with pytest.raises(StoreError, match="catalog.edge.*Rebuild"):
        EdgeStore(folder).describe()


def test_a_store_is_only_built_into_a_new_folder(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        EdgeStore.create(tmp_path, 4, encoder="x")


def test_building_refuses_an_item_without_a_title(tmp_path: Path) -> None:
    store = EdgeStore.create(tmp_path / "s", 2, encoder="x")
    with pytest.raises(StoreError, match="point 1 has no title"):
        store.add(np.ones((2, 2), np.float32), [{"title": "a"}, {"name": "b"}])
    with pytest.raises(ValueError, match="argument 2"):
        store.add(np.ones((2, 2), np.float32), [{"title": "a"}])


def test_payload_beside_the_title_is_kept(tmp_path: Path) -> None:
    store = EdgeStore.create(tmp_path / "s", 2, encoder="x")
    store.add(np.ones((1, 2), np.float32), [{"title": "a", "price": 4.5, "currency": "USD"}])
    store.finish()
    (record,) = edge.EdgeShard.load(str(tmp_path / "s")).retrieve([0], True, False)
    assert record.payload == {"title": "a", "price": 4.5, "currency": "USD"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_store_emptied_during_training_is_no_bad_plan(tmp_path: Path) -> None:
    """Preflight saw it filled; now it answers with nothing, which as titles would score every plan 0."""
    empty = blank_shard(tmp_path / "shard")
    with QdrantServer(empty, vectors={"dense": {"size": 4, "distance": "Cosine"}}) as running:
        with pytest.raises(StoreError, match="emptied or is being rebuilt"):
            client(running).search_batch(np.ones((1, 4), dtype=np.float32), 20)
    empty.close()
    with pytest.raises(StoreError, match="emptied or is being rebuilt"):
        EdgeStore(tmp_path / "shard").search_batch(np.ones((1, 4), dtype=np.float32), 20)


def test_a_model_is_the_same_by_folder_and_by_hub_name(folder: Path, tmp_path: Path) -> None:
    class Named:
        name, dim = "BAAI/bge-m3", 4

    class Described:
        def describe(self) -> Any:
            return StoreInfo("edge", "x", 9, 4, "bge-m3")

    assert check_store(Described(), Named()).points == 9  # type: ignore[arg-type]
