"""A text with each of its hypotheses is the pair that the tokenizers library makes, cut as `only_first` cuts it."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from tokenizers import Tokenizer as HFTokenizer

from packbert.model_export.artifact.rows import Ints
from packbert.service.errors import Invalid
from packbert.service.tokenization.encoding import Direction, EncodedText, EncodeOptions
from packbert.service.tokenization.tokenizer import Tokenizer
from packbert.service.tokenization.windows import HypothesesReader
from tests.export.goldens import Exported
from tests.service.tokenization.reading import open_tokenizer, read_all

LIMIT = 144
OPTIONS = EncodeOptions(outputs=frozenset({"labels"}))
LABELS = ("This example is cat.", "It is about the big river in the sun!", "我爱北京。")
TEXTS = ("The cat sat on the mat.", "a", "dog " * 135, "The cat sat on the mat in Paris. " * 20)
LONG = ("The dog walked to the river. " * 300, "The cat sat, and it was warm. " * 400)  # of which a beginning is read


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta", "albert"])
def tokenizer(exported: Exported, request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    with open_tokenizer(exported(request.param).root) as tokenizer:
        assert tokenizer.artifact.manifest.max_tokens == LIMIT
        yield tokenizer


def read_pairs(
    tokenizer: Tokenizer, texts: Sequence[str], hypotheses: Sequence[Ints], truncate: Direction | None
) -> HypothesesReader:
    return tokenizer.reader(HypothesesReader, texts, OPTIONS, truncate=truncate, hypotheses=hypotheses)


def pairs(
    tokenizer: Tokenizer, texts: Sequence[str], truncate: Direction | None, labels: Sequence[str] = LABELS
) -> list[EncodedText]:
    plain = HFTokenizer.from_file(str(tokenizer.artifact.tokenizer))
    ids = [np.array(plain.encode(label, add_special_tokens=False).ids, np.int32) for label in labels]
    found, owners = read_all(read_pairs(tokenizer, texts, ids, truncate))
    assert owners == [index for index in range(len(texts)) for _ in labels]
    return found


@pytest.mark.parametrize("truncate", ["right", "left"])
@pytest.mark.parametrize("texts", [TEXTS, LONG], ids=["short", "long"])
def test_pairs_are_those_of_the_library(tokenizer: Tokenizer, texts: Sequence[str], truncate: Direction) -> None:
    library = HFTokenizer.from_file(str(tokenizer.artifact.tokenizer))
    library.enable_truncation(LIMIT, strategy="only_first", direction=truncate)
    expected = [library.encode(text, label) for text in texts for label in LABELS]
    found = pairs(tokenizer, texts, truncate)
    assert [one.ids.tolist() for one in found] == [one.ids for one in expected]
    assert [one.types.tolist() for one in found] == [one.type_ids for one in expected]
    cut = [any(one.overflowing for one in expected[at : at + len(LABELS)]) for at in range(0, len(found), len(LABELS))]
    assert [one.truncated for one in found[:: len(LABELS)]] == cut
    assert sum(one.truncated for one in found) == sum(cut), "a text counts once"


@pytest.mark.parametrize(("text", "more"), [("dog " * 150, ""), ("The dog walked. " * 1000, "more than ")])
def test_a_text_that_is_too_long_is_refused_with_its_index(tokenizer: Tokenizer, text: str, more: str) -> None:
    with pytest.raises(Invalid, match=rf"input has {more}\d+ tokens; this model takes at most 144") as caught:
        pairs(tokenizer, ["cat", text], None)
    assert (caught.value.code, caught.value.index) == ("too_long", 1)


def test_a_hypothesis_leaves_room_for_a_token_of_the_text(tokenizer: Tokenizer) -> None:
    special = HFTokenizer.from_file(str(tokenizer.artifact.tokenizer)).num_special_tokens_to_add(True)
    most = np.full(LIMIT - special - 1, 5, np.int32)
    found, _ = read_all(read_pairs(tokenizer, ["cat " * 9], [most], "right"))
    assert [len(one) for one in found] == [LIMIT]
    with pytest.raises(Invalid, match="takes at most 144, which leaves no room for a text beside") as caught:
        read_pairs(tokenizer, ["cat"], [np.append(most, most[:1])], "right")
    assert caught.value.code == "candidate_labels"


def test_a_text_that_fits_beside_some_hypotheses_only_is_too_long(tokenizer: Tokenizer) -> None:
    labels = [np.full(size, 5, np.int32) for size in (5, 50)]
    with pytest.raises(Invalid, match="this model takes at most 144") as caught:
        read_all(read_pairs(tokenizer, ["dog " * 100], labels, None))
    assert caught.value.code == "too_long"
