"""A checkpoint's tokenizer files -> one tokenizer.json, its special tokens and its length limit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, BertWordPieceTokenizer, Tokenizer

from model_export.checkpoint import read_json
from model_export.errors import ExportError

NAMES = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "pad": "[PAD]", "unk": "[UNK]"}
UNLIMITED = 10**6  # transformers writes 1e30 where a tokenizer has no limit


@dataclass(slots=True)
class Vocabulary:
    tokenizer: Tokenizer
    special_tokens: Mapping[str, int]
    max_tokens: int
    assumed: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        self.tokenizer.save(str(path), pretty=False)


def read_vocabulary(folder: Path, *, size: int, positions: int) -> Vocabulary:
    """The tokenizer in `folder`, for a model of `size` word embeddings. Raises ExportError where there is none or it does not fit."""
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    assumed: dict[str, str] = {}
    tokenizer = _tokenizer(folder, settings, assumed)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= size:
        raise ExportError(f"the tokenizer has id {largest}, but the model has only {size} word embeddings: they do not belong together")
    special = _special_tokens(tokenizer, folder, settings)
    if tokenizer.num_special_tokens_to_add(False) < 2:
        raise ExportError("the tokenizer adds no [CLS] and [SEP] around a text: tokenizer.json has no post-processor")
    stated = settings.get("model_max_length")
    limit = min(positions, int(stated)) if stated and stated < UNLIMITED else positions
    return Vocabulary(tokenizer=tokenizer, special_tokens=special, max_tokens=limit, assumed=assumed)


def _tokenizer(folder: Path, settings: Mapping[str, Any], assumed: dict[str, str]) -> Tokenizer:
    if (folder / "tokenizer.json").is_file():
        try:
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises a bare Exception
            raise ExportError(f"{folder / 'tokenizer.json'} is damaged: {error}") from error
    if (folder / "vocab.txt").is_file():
        return _word_piece(folder / "vocab.txt", settings, assumed)
    raise ExportError(f"{folder} has neither tokenizer.json nor vocab.txt")


def _word_piece(vocabulary: Path, settings: Mapping[str, Any], assumed: dict[str, str]) -> Tokenizer:
    """BERT's own tokenizer around a vocab.txt, one piece a line; line breaks other than LF belong to the piece."""
    pieces = vocabulary.read_text("utf-8").removesuffix("\n").split("\n")
    ids = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    for name in ("cls", "sep", "unk"):
        if NAMES[name] not in ids:
            raise ExportError(f"{vocabulary} has no {NAMES[name]}: it is not the vocabulary of a BERT")
    if "do_lower_case" not in settings:
        assumed["do_lower_case"] = "true, as transformers does where tokenizer_config.json is silent; a cased model needs it set to false"
    lower = bool(settings.get("do_lower_case", True))
    built = BertWordPieceTokenizer(
        ids,
        lowercase=lower,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    tokenizer = Tokenizer.from_str(built.to_str())
    tokenizer.add_special_tokens([AddedToken(content, special=True) for content in NAMES.values() if content in ids])
    return tokenizer


def _special_tokens(tokenizer: Tokenizer, folder: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """cls, sep, mask, pad, unk -> id, as the checkpoint names them; those it does not have are left out."""
    stated = read_json(folder / "special_tokens_map.json") if (folder / "special_tokens_map.json").is_file() else {}
    found: dict[str, int] = {}
    for name, usual in NAMES.items():
        token = settings.get(f"{name}_token") or stated.get(f"{name}_token") or usual
        content = token["content"] if isinstance(token, dict) else token
        number = tokenizer.token_to_id(content)
        if number is not None:
            found[name] = number
    return found
