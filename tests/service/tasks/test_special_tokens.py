"""Special tokens in a text: a checkpoint's own are read by default, all of them with `special_tokens: true`.

The answers are those of transformers.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packbert.service.tasks.embed import embed
from packbert.service.tasks.fill_mask import FillMaskRequest, fill_mask
from packbert.service.tasks.inputs import EmbedRequest
from packbert.service.tasks.tokens import DecodeRequest, TokenizeRequest, decode, tokenize
from packbert.service.tasks.vectors import EmbedAllRequest, embed_all
from packbert.service.tokenization.encoding import EncodeOptions, Text
from packbert.service.tokenization.tokenizer import Tokenizer
from packbert.service.tokenization.windows import WindowsReader
from tests.export.goldens import Exported, answers
from tests.paths import GOLDEN
from tests.service.in_process import values_at_once
from tests.service.tokenization.reading import encode, open_tokenizer, read_all

NAMES = sorted(folder.name for folder in GOLDEN.glob("*-entities"))
WAYS = [("own", False), ("own", True), ("all", True)]  # the answers, and `special_tokens` of the request
STRIDE = 5
each_family = pytest.mark.parametrize("name", NAMES)
each_way = pytest.mark.parametrize(("asked", "special_tokens"), WAYS)


@pytest.fixture
def artifact(name: str, exported: Exported) -> Path:
    return exported(name).root


def text_of(case: dict[str, Any]) -> Text:
    return case["text"] if case["text_pair"] is None else (case["text"], case["text_pair"])


@each_family
@each_way
def test_tokens_and_decoded_texts_are_those_of_transformers(
    name: str, asked: str, special_tokens: bool, artifact: Path
) -> None:
    cases = answers(name)[asked]
    texts: Any = [one if isinstance(one, str) else list(one) for one in map(text_of, cases)]
    asking = TokenizeRequest(inputs=texts, details=True, special_tokens=special_tokens)
    ids = [one["ids"] for one in cases]
    decoding = [(decode, DecodeRequest(ids=ids, skip_special_tokens=skip)) for skip in (True, False)]
    shown, *decoded = values_at_once(artifact, (tokenize, asking), *decoding)
    assert decoded == [[one["decoded"] for one in cases], [one["decoded_special"] for one in cases]]
    for tokens, case in zip(shown, cases, strict=True):
        assert [one["id"] for one in tokens] == case["ids"], case["text"]
        assert [int(one["special"]) for one in tokens] == case["special"]
        assert [one["segment"] for one in tokens] == case["types"]
        assert [one["side"] for one in tokens] == case["sides"]
        spans = [[one["start"], one["stop"]] for one in tokens if not one["special"]]
        own = zip(case["spans"], case["special"], strict=True)
        assert spans == [span for span, special in own if not special], case["text"]


@each_family
@each_way
def test_vectors_are_those_of_transformers(name: str, asked: str, special_tokens: bool, artifact: Path) -> None:
    cases = [one for one in answers(name)[asked] if "vectors" in one]
    both: Any = {"inputs": [one["text"] for one in cases], "special_tokens": special_tokens}
    of_texts = EmbedRequest(**both, pooling="cls", normalize=False)
    of_tokens, vectors = values_at_once(artifact, (embed_all, EmbedAllRequest(**both)), (embed, of_texts))
    for tokens, text, case in zip(of_tokens, vectors, cases, strict=True):
        np.testing.assert_allclose(np.array(tokens), case["vectors"], atol=1e-4, err_msg=case["text"])
        np.testing.assert_allclose(text, case["vectors"][0], atol=1e-4)


@each_family
@pytest.mark.parametrize(("asked", "special_tokens"), [("masked_own", False), ("masked_all", True)])
def test_masks_beside_special_tokens_are_filled_as_by_transformers(
    name: str, asked: str, special_tokens: bool, artifact: Path
) -> None:
    golden = answers(name)[asked]
    request = FillMaskRequest(inputs=golden["text"], top_k=3, special_tokens=special_tokens)
    (found,) = values_at_once(artifact, (fill_mask, request))
    assert [one["token"] for one in found] == [one["token"] for one in golden["answer"]]
    assert [one["sequence"] for one in found] == [one["sequence"] for one in golden["answer"]]
    np.testing.assert_allclose([one["score"] for one in found], [one["score"] for one in golden["answer"]], atol=1e-5)


@pytest.fixture
def tokenizer(artifact: Path) -> Any:
    with open_tokenizer(artifact) as tokenizer:
        yield tokenizer


@each_family
@each_way
def test_long_texts_are_cut_and_read_in_windows_as_by_transformers(
    name: str, asked: str, special_tokens: bool, tokenizer: Tokenizer
) -> None:
    cases = answers(name)[asked]
    how = EncodeOptions(outputs=frozenset({"cls"}), special_tokens=special_tokens)
    cut = encode(tokenizer, list(map(text_of, cases)), how, "right")
    assert [one.ids.tolist() for one in cut] == [one["cut"] for one in cases]
    alone = [one for one in cases if "windows" in one]
    spans = replace(how, spans=True)
    for case in alone:
        reader = tokenizer.reader(WindowsReader, [case["text"]], spans, asked_stride=STRIDE, prompt=0, most=100)
        made, _ = read_all(reader)
        assert [one.ids.tolist() for one in made] == case["windows"]


@pytest.mark.parametrize("name", ["bert-entities"])
def test_the_setting_is_for_requests_that_do_not_say_it(name: str, artifact: Path) -> None:
    case = answers(name)["all"][0]

    asked = [(tokenize, TokenizeRequest(inputs=case["text"], special_tokens=said)) for said in (None, False)]
    by_setting, refused = map(list, values_at_once(artifact, *asked, special_tokens=True))
    assert [one["id"] for one in by_setting[0]] == case["ids"]
    assert len(refused[0]) > len(case["ids"])
