"""Makes stated.json: what the libraries read if several files of a checkpoint can state a fact.

    python -m tests.golden.makers.make_stated FACT ...

It needs torch and sentence-transformers 6.2.0; the facts of a tokenizer need transformers 4.57, those of a ColBERT
PyLate 1.6.0. The tests need none of them. A row has a value for each place, null if it is not stated, and at the end
what the library has then.
"""

import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.stated import FILE, MODULES, build

TEXT = "The Cat"
SENTENCE, TOKENIZER, CONFIG = "config_sentence_transformers.json", "tokenizer_config.json", "config.json"
LISTED = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
POOLED = [*LISTED, {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
OF_ENCODER = {MODULES: POOLED, "1_Pooling/config.json embedding_dimension": 32}
DECODER = {"4": {"content": "[MASK]", "special": True}}


@dataclass(frozen=True, kw_only=True)
class Fact:
    places: dict[str, Iterable[Any]]  # file and path of keys -> its values
    read: Callable[[str], Any]  # by the library, from a folder
    base: str = "bert-labels"
    common: dict[str, Any] = field(default_factory=dict)  # as `places`, the same in all rows


def activation(folder: str) -> str:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(folder, device="cpu", model_kwargs={"ignore_mismatched_sizes": True})
    return type(model.activation_fn).__name__


def encoder(folder: str) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, device="cpu")


def tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def of_colbert(name: str, theirs: str, own: Any, other: Any) -> Fact:
    def read(folder: str) -> Any:
        from pylate.models import ColBERT

        return getattr(ColBERT(folder, device="cpu"), name)

    places = {MODULES: (LISTED, None), f"{SENTENCE} {name}": (None, own), f"artifact.metadata {theirs}": (other,)}
    return Fact(base="stanford", common={f"{SENTENCE} model_type": "ColBERT"}, places=places, read=read)


FACTS = {
    "activation_fn": Fact(
        common={f"{CONFIG} id2label": {"0": "LABEL_0"}, f"{SENTENCE} model_type": "CrossEncoder"},
        places={
            MODULES: (LISTED, None),
            **dict.fromkeys(
                (
                    f"{SENTENCE} activation_fn",
                    f"{CONFIG} sentence_transformers.activation_fn",
                    f"{CONFIG} sbert_ce_default_activation_function",
                ),
                (None, "torch.nn.Sigmoid", "torch.nn.Identity"),
            ),
        },
        read=activation,
    ),
    "max_seq_length": Fact(
        common=OF_ENCODER,
        places={
            "sentence_bert_config.json max_seq_length": (None, 16),
            f"{TOKENIZER} model_max_length": (None, 20, 10**30),
            f"{TOKENIZER} max_len": (None, 24),
        },
        read=lambda folder: encoder(folder).max_seq_length,
    ),
    "do_lower_case": Fact(
        common=OF_ENCODER,
        places={
            "sentence_bert_config.json do_lower_case": (None, True, False),
            f"{TOKENIZER} do_lower_case": (None, True, False),
            "tokenizer.json normalizer.lowercase": (True, False),
        },
        read=lambda folder: encoder(folder).tokenizer.tokenize(TEXT),
    ),
    "add_prefix_space": Fact(
        base="roberta-labels",
        places={
            f"{TOKENIZER} add_prefix_space": (None, True, False),
            "tokenizer.json pre_tokenizer.add_prefix_space": (True, False),
        },
        read=lambda folder: tokenizer(folder).tokenize("the"),
    ),
    "tokenizer_class": Fact(  # PreTrainedTokenizerFast ignores the flag
        common={f"{TOKENIZER} do_lower_case": False},
        places=dict.fromkeys(
            (f"{TOKENIZER} tokenizer_class", f"{CONFIG} tokenizer_class"),
            (None, "BertTokenizer", "PreTrainedTokenizerFast"),
        ),
        read=lambda folder: tokenizer(folder).tokenize(TEXT),
    ),
    "mask_token": Fact(
        places={
            f"{TOKENIZER} added_tokens_decoder": (None, DECODER),
            "special_tokens_map.json mask_token": (None, "dog"),
            f"{TOKENIZER} mask_token": (None, "cat"),
        },
        read=lambda folder: tokenizer(folder).mask_token,
    ),
    "additional_special_tokens": Fact(
        places={
            f"{TOKENIZER} added_tokens_decoder": (None, DECODER),
            "special_tokens_map.json additional_special_tokens": (None, ["dog"]),
            f"{TOKENIZER} additional_special_tokens": (None, ["cat"]),
        },
        read=lambda folder: sorted(tokenizer(folder).additional_special_tokens),
    ),
    "query_prefix": of_colbert("query_prefix", "query_token_id", "a", "b"),
    "document_prefix": of_colbert("document_prefix", "doc_token_id", "a", "b"),
    "query_length": of_colbert("query_length", "query_maxlen", 11, 12),
    "document_length": of_colbert("document_length", "doc_maxlen", 21, 22),
    "attend_to_expansion_tokens": of_colbert("attend_to_expansion_tokens", "attend_to_mask_tokens", False, True),
}


def rows(fact: Fact) -> list[list[Any]]:
    made = []
    for values in itertools.product(*fact.places.values()):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = build({**asdict(fact), "places": [*fact.places]}, values, Path(folder) / "checkpoint")
            made.append([*values, fact.read(str(checkpoint))])
    return made


def main() -> None:
    found = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    for name in sys.argv[1:] or FACTS:
        fact = FACTS[name]
        found[name] = {"base": fact.base, "common": fact.common, "places": [*fact.places], "rows": rows(fact)}
        print(f"{name}: {len(found[name]['rows'])} rows")
    text = ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    FILE.write_text(f"{{\n{text}\n}}\n", "utf-8")


if __name__ == "__main__":
    main()
