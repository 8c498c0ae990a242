"""The library answers as the routes do, bit for bit; loading raises; engines in one process do not know each other."""

import asyncio
import inspect
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from packbert import AsyncClient, Client, Engine, ManifestError, ServiceError, SettingsError, make_app
from packbert.service.engine import memory
from packbert.service.errors import Unavailable
from packbert.service.http.dialects import native
from packbert.service.library.engine import NOT_OPEN
from packbert.service.model_cache import ModelError
from tests.export.goldens import Exported
from tests.paths import GOLDEN
from tests.service.fakes import on_loop
from tests.service.in_process import client_of
from tests.service.polling import until

TEXTS = [f"the dog number {number} is hairy" for number in range(9)]
LONG = "dog " * 400
PATIENCE = 60.0  # seconds, for a test that fails
PAIR = {"text": "my dog", "text_pair": "is hairy"}
ONE_REQUEST: dict[str, tuple[tuple[Any, ...], tuple[str, dict[str, Any]]]] = {  # method -> what it gets, its request
    "embed_sparse": ((TEXTS,), ("/embed_sparse", {"inputs": TEXTS})),
    "rerank": (("dog", TEXTS), ("/rerank", {"query": "dog", "texts": TEXTS})),
    "similarity": (
        ("dog", TEXTS),
        ("/similarity", {"inputs": {"source_sentence": "dog", "sentences": TEXTS}}),
    ),
    "score": ((TEXTS[:2],), ("/score", {"inputs": TEXTS[:2]})),
    "answer": (("who?", "the dog"), ("/answer", {"question": "who?", "context": "the dog"})),
    "choose": (("my dog", ["a", "b"]), ("/choose", {"prompt": "my dog", "choices": ["a", "b"]})),
    "tokenize": ((TEXTS,), ("/tokenize", {"inputs": TEXTS})),
    "attention": ((PAIR,), ("/attention", {"inputs": PAIR})),
}


@pytest.fixture(scope="module")
def engine(bert_artifact: Path) -> Iterator[Engine]:
    with Engine.from_model(bert_artifact, max_inputs=100) as engine:
        yield engine


def as_json(value: Any) -> Any:
    """What a client reads of a response with this value."""
    return json.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/embed", {"inputs": TEXTS}),
        ("/embed", {"inputs": TEXTS[0], "pooling": "mean", "normalize": True, "dimensions": 5}),
        ("/embed", {"inputs": TEXTS, "pooling": "none"}),
        ("/fill-mask", {"inputs": ["my [MASK] is hairy", "[MASK] [MASK]"], "top_k": 3}),
        ("/tokenize", {"inputs": TEXTS[0], "details": True}),
        ("/decode", {"ids": [5, 6, 7]}),
        ("/predict", {"inputs": TEXTS}),  # errors from here on
        ("/embed", {"inputs": []}),
        ("/embed", {"inputs": [*TEXTS, LONG]}),
        ("/embed", {"inputs": [*TEXTS, 7]}),
        ("/embed", {"inputs": TEXTS * 20}),
        ("/fill-mask", {"inputs": "my [MASK]", "top_k": 10**6}),
    ],
)
def test_a_call_gives_what_the_route_gives(server: httpx.Client, engine: Engine, route: str, body: Any) -> None:
    response = server.post(route, json=body)
    expected = response.json()
    if response.status_code == 200:
        assert as_json(engine.wait(engine.run(route, **body))) == expected
        return
    with pytest.raises(ServiceError) as failed:
        engine.wait(engine.run(route, **body))
    error = failed.value
    assert (error.status, error.code, error.message) == (response.status_code, expected["code"], expected["error"])
    assert error.index == expected.get("index")


OF_LISTS: dict[str, tuple[tuple[Any, ...], tuple[str, dict[str, Any]]]] = {  # as ONE_REQUEST
    "embed": ((TEXTS,), ("/embed", {"inputs": TEXTS})),
    "embed_tokens": ((TEXTS,), ("/embed", {"inputs": TEXTS, "pooling": "none"})),
    "fill_mask": ((["my [MASK]", "a [MASK]"],), ("/fill-mask", {"inputs": ["my [MASK]", "a [MASK]"]})),
    "nsp": (([("my dog", "is hairy")],), ("/nsp", {"inputs": [["my dog", "is hairy"]]})),
}


def test_the_methods_give_what_their_routes_give(engine: Engine) -> None:
    for method, (values, (route, body)) in (OF_LISTS | ONE_REQUEST).items():
        try:
            expected: Any = engine.wait(engine.run(route, **body))
        except ServiceError as error:  # the model has no such head
            expected = error.message
        try:
            found = engine.wait(getattr(engine, method)(*values))
        except ServiceError as error:
            found = error.message
        assert as_json(found) == as_json(expected), method
    assert engine.wait(engine.embed(TEXTS)).dtype == np.float32
    assert len(engine.wait(engine.fill_mask("my [MASK]"))) == 1


def test_from_model_exports_a_checkpoint_as_packbert_serve_does(bert_artifact: Path, tmp_path: Path) -> None:
    with Engine.from_model(bert_artifact) as of_artifact, Engine.from_model(GOLDEN / "bert", cache=tmp_path) as engine:
        expected = of_artifact.wait(of_artifact.embed(TEXTS))
        assert np.array_equal(engine.wait(engine.embed(TEXTS)), expected)
    with pytest.raises(ModelError, match="nowhere"), Engine.from_model(tmp_path / "nowhere", cache=tmp_path):
        pass
    with pytest.raises(SettingsError, match="precisions"):
        Engine.from_model("a/b", precisions="int8")


@on_loop
async def test_classifiers_taggers_and_cross_encoders_have_their_methods(exported: Exported) -> None:
    """Also: several engines in one process, each with a model of its own."""
    roots = [exported(name).root for name in ("bert-labels", "bert-tags", "distilbert-labels")]
    engines = [Engine.from_model(root, token_budget=256) for root in roots]
    await asyncio.gather(*(one.open() for one in engines))
    classifier, tagger, cross_encoder = engines
    labels = await classifier.predict(["a text", ("a text", "a pair")], top_k=2)
    assert [len(one) for one in labels] == [2, 2]
    assert labels[0] == await classifier.run("/predict", inputs="a text", top_k=2)
    assert labels[1] == await classifier.run("/predict", inputs=["a text", "a pair"], top_k=2)
    assert await tagger.tag("my dog", aggregation_strategy="simple") == [
        (await tagger.run("/tag", inputs=["my dog"], aggregation_strategy="simple"))[0]
    ]
    ranked = await cross_encoder.rerank("a dog", TEXTS, return_text=True)
    assert sorted(one["index"] for one in ranked) == list(range(len(TEXTS)))
    assert ranked[0]["text"] == TEXTS[ranked[0]["index"]]
    with pytest.raises(ServiceError, match="no tags head"):
        await classifier.tag("my dog")
    await asyncio.gather(*(one.close() for one in engines))


OF_CALLS = {"open", "close", "run", "run_task"}


def test_engine_and_clients_have_a_method_for_each_task(engine: Engine) -> None:
    coroutines = {name for name, one in vars(Engine).items() if inspect.iscoroutinefunction(one)}
    methods = {name for name in coroutines if not name.startswith("_")} - OF_CALLS
    own = {*native.ROUTES, *native.TEI_ROUTES, "/tokenize", "/embed_sparse", "/rerank", "/score"}
    assert methods == {path.removeprefix("/").replace("-", "_") for path in own} | {"embed_tokens"}
    for client in (Client, AsyncClient):
        assert methods <= vars(client).keys()
    with pytest.raises(ServiceError, match=r"the engine has no route /embedd; it has /embed, "):
        engine.wait(engine.run("/embedd", inputs="x"))


def test_an_unpaired_surrogate_is_an_error_of_its_input(engine: Engine) -> None:
    """JSON in UTF-8 cannot hold one, a Python string can."""
    with pytest.raises(ServiceError) as failed:
        engine.wait(engine.embed([*TEXTS, "\ud800"]))
    assert (failed.value.code, failed.value.index) == ("tokenizer_failed", len(TEXTS))


@on_loop
async def test_loading_is_awaited_and_health_is_asked_for(bert_artifact: Path) -> None:
    engine = Engine.from_model(str(bert_artifact))
    assert engine.health() == (False, NOT_OPEN)
    with pytest.raises(Unavailable, match="the engine is not open: use it in `with "):
        await engine.embed("my dog")
    opening = asyncio.create_task(engine.open())
    await asyncio.sleep(0)
    assert engine.health() == (False, "the model is loading: try again in a few seconds")
    await opening
    await engine.close()
    engine = Engine.from_model(str(bert_artifact))
    async with engine:
        assert engine.health() == (True, "ready")
        assert engine.info()["model"] == "bert"
        assert engine.load().waiting_tokens == engine.load().waiting_seconds == 0
        assert 0 <= engine.load().busy <= 1
        assert (await engine.embed("my dog")).shape == (1, engine.info()["sizes"]["hidden"])
    assert not engine.health().ready
    with pytest.raises(Unavailable, match="shutting down"):
        await engine.embed("my dog")
    with pytest.raises(RuntimeError, match="was opened before"):
        await engine.open()


def test_the_threads_of_an_engine_end_with_it(bert_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closing, move = threading.Event(), memory._move

    def move_at_the_end() -> None:
        closing.wait(PATIENCE)
        move()

    monkeypatch.setattr(memory, "_move", move_at_the_end)
    before = {*threading.enumerate()}
    with Engine.from_model(bert_artifact) as engine:
        engine.wait(engine.embed(TEXTS))
        assert "huge pages" in {one.name for one in {*threading.enumerate()} - before}
        closing.set()
    until(lambda: {*threading.enumerate()} <= before, PATIENCE)  # they have been told to end


def test_a_failed_load_raises_and_health_says_why(bert_artifact: Path) -> None:
    engine = Engine.from_model(bert_artifact, device="cuda")
    with pytest.raises(ManifestError, match="holds no artifact for cuda"), engine:
        pass
    assert not engine.health().ready
    assert "loading failed: ManifestError: " in engine.health().status
    with pytest.raises(SettingsError, match=r"^truncate: perhaps is not true or false"):
        Engine.from_model(bert_artifact, truncate="perhaps")
    with pytest.raises(SettingsError, match=r"unknown setting thread \(did you mean threads\?\); known are a"):
        Engine.from_model(bert_artifact, thread=2)
    with (
        pytest.raises(SettingsError, match="BERT_POOLING: bert has no sentence"),
        Engine.from_model(bert_artifact, pooling="sentence"),
    ):
        pass


def test_settings_of_the_environment_are_not_those_of_an_engine(
    bert_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERT_MAX_INPUTS", "3")
    monkeypatch.setenv("BERT_PORTT", "unknown")
    assert Engine.from_model(bert_artifact).settings.max_inputs == 2048


@on_loop
async def test_an_engine_does_not_wait_for_itself(bert_artifact: Path, engine: Engine) -> None:
    async with Engine.from_model(bert_artifact) as own:
        with pytest.raises(RuntimeError, match="stop the engine's own event loop"):
            own.wait(own.embed("my dog"))
        with pytest.raises(RuntimeError, match="open on another event loop"):
            await engine.embed("my dog")
        found = await asyncio.to_thread(lambda: list(own.embed_all(TEXTS)))
        assert np.array_equal(found, await own.embed(TEXTS))


def test_the_application_has_the_routes_over_an_open_engine(server: httpx.Client, bert_artifact: Path) -> None:
    requests = (
        ("/embed", {"inputs": TEXTS}),
        ("/v1/embeddings", {"input": TEXTS, "model": "x"}),
        ("/embed", {"inputs": [], "truncate": True}),
    )
    own_id = {"x-request-id": "the-same"}
    expected = [server.post(route, json=body, headers=own_id) for route, body in requests]

    async def story() -> None:
        async with Engine.from_model(bert_artifact, max_inputs=100) as engine:
            async with client_of(make_app(engine)) as client:
                found = [await client.post(route, json=body, headers=own_id) for route, body in requests]
                assert (await client.get("/ready")).json() == {"status": "ready"}
                assert (await client.get("/info")).json()["model_id"] == "bert"
            assert [one.status_code for one in found] == [200, 200, 422]
            assert [one.content for one in found] == [one.content for one in expected]
        with pytest.raises(Unavailable):
            make_app(engine)

    asyncio.run(story())


def test_several_models_share_an_engine_and_a_call_names_one(
    bert_artifact: Path, exported: Exported, engine: Engine
) -> None:
    paths = {"first": bert_artifact, "second": exported("distilbert-labels").root}
    with (
        Engine.from_models(paths, token_budget=256) as several,
        Engine.from_model(paths["second"], token_budget=256) as alone,
    ):
        of_first = engine.wait(engine.embed(TEXTS))
        assert np.array_equal(several.wait(several.embed(TEXTS)), of_first)
        assert np.array_equal(several.wait(several.embed(TEXTS, model="first")), of_first)
        vectors = list(several.embed_all(TEXTS, model="second"))
        assert np.array_equal(vectors, list(alone.embed_all(TEXTS)))
        assert several.wait(several.predict("a", model="second")) == alone.wait(alone.predict("a"))
        with pytest.raises(ServiceError, match="labels head"):
            several.wait(several.predict("a"))
        with pytest.raises(ServiceError, match="no model 'third': this server has first, second"):
            several.wait(several.nsp([("a", "b")], model="third"))
        for name in paths:
            assert several.info(name)["model"] == name
            assert several.health(name) == (True, "ready")
            assert several.models.group[name].source == str(paths[name])
        assert several.load().waiting_tokens == 0


@pytest.mark.parametrize("paths", [{}, {"a name": "x"}, {"a/b": "x", "a": "y"}])
def test_models_without_a_name_that_fits_into_a_path_are_refused(paths: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        Engine.from_models(paths)
