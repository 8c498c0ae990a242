"""A checkpoint's tokenizer files -> one tokenizer.json, its special tokens and its length limit."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, BertWordPieceTokenizer, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from model_export.checkpoint import read_json
from model_export.errors import ExportError
from model_export.families import BERT_TOKENS, Family
from model_export.pieces import KINDS, sentence_pieces

PIECES = ("spiece.model", "sentencepiece.bpe.model", "sentencepiece.model", "tokenizer.model")
FILES = "tokenizer.json, vocab.txt, vocab.json with merges.txt, or spiece.model"
UNLIMITED = 10**6  # transformers writes 1e30 where a tokenizer has no limit


@dataclass(slots=True)
class Vocabulary:
    tokenizer: Tokenizer
    special_tokens: Mapping[str, int]
    max_tokens: int
    source: str  # the file that it was read from
    assumed: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        self.tokenizer.save(str(path), pretty=False)


def read_vocabulary(folder: Path, family: Family, *, size: int, positions: int) -> Vocabulary:
    """The tokenizer in `folder`, for a model of `size` word embeddings. Raises ExportError where there is none or it does not fit."""
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    assumed: dict[str, str] = {}
    source, tokenizer = _tokenizer(folder, family, settings, assumed)
    _keep_text_text(tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= size:
        raise ExportError(f"the tokenizer has id {largest}, but the model has only {size} word embeddings: they do not belong together")
    special = _special_tokens(tokenizer, folder, family, settings)
    if tokenizer.num_special_tokens_to_add(False) < 2:
        raise ExportError("the tokenizer adds no [CLS] and [SEP] around a text: tokenizer.json has no post-processor")
    stated = settings.get("model_max_length")
    limit = min(positions, int(stated)) if stated and stated < UNLIMITED else positions
    return Vocabulary(tokenizer=tokenizer, special_tokens=special, max_tokens=limit, source=source, assumed=assumed)


def _tokenizer(folder: Path, family: Family, settings: Mapping[str, Any], assumed: dict[str, str]) -> tuple[str, Tokenizer]:
    if (folder / "tokenizer.json").is_file():
        try:
            return "tokenizer.json", Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises a bare Exception
            raise ExportError(f"{folder / 'tokenizer.json'} is damaged: {error}") from error
    if (folder / "vocab.txt").is_file():
        return "vocab.txt", _word_piece(folder / "vocab.txt", settings, assumed)
    if (folder / "vocab.json").is_file():
        return "vocab.json and merges.txt", _byte_pairs(folder, family.tokens, settings)
    for name in PIECES:
        if (folder / name).is_file() and family.pieces:
            return name, sentence_pieces(folder / name, KINDS[family.pieces], family.tokens, settings)
    raise ExportError(f"{folder} has no tokenizer that this exporter reads: {FILES}")


def _keep_text_text(tokenizer: Tokenizer) -> None:
    """A unigram model has its special tokens among its pieces and would read `</s>` in a text as one: split it before the model sees it.

    Other models cannot: WordPiece's texts are split at punctuation, and no merges of BPE lead to a special token.
    """
    if not isinstance(tokenizer.model, models.Unigram):
        return
    names = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special and len(token.content) > 1]
    inside = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names)
    split = pre_tokenizers.Split(Regex(inside), "merged_with_previous")
    before = [tokenizer.pre_tokenizer] if tokenizer.pre_tokenizer is not None else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, split])


def _word_piece(vocabulary: Path, settings: Mapping[str, Any], assumed: dict[str, str]) -> Tokenizer:
    """BERT's own tokenizer around a vocab.txt, one piece a line; line breaks other than LF belong to the piece."""
    try:
        pieces = vocabulary.read_text("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ExportError(f"{vocabulary} is truncated or damaged: {error}") from error
    ids = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    for name in ("cls", "sep", "unk"):
        if BERT_TOKENS[name] not in ids:
            raise ExportError(f"{vocabulary} has no {BERT_TOKENS[name]}: it is not the vocabulary of a BERT")
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
    tokenizer.add_special_tokens([AddedToken(content, special=True) for content in BERT_TOKENS.values() if content in ids])
    return tokenizer


def _byte_pairs(folder: Path, tokens: Mapping[str, str], settings: Mapping[str, Any]) -> Tokenizer:
    """GPT-2's byte-level BPE as RoBERTa uses it; `<mask>` takes the space to its left with it."""
    if not (folder / "merges.txt").is_file():
        raise ExportError(f"{folder / 'merges.txt'} is missing: vocab.json alone is not a tokenizer")
    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    except Exception as error:  # the library raises a bare Exception
        raise ExportError(f"{folder / 'vocab.json'} or merges.txt is damaged: {error}") from error
    ids = {name: number for name, token in tokens.items() if (number := tokenizer.token_to_id(token)) is not None}
    if missing := [token for name, token in tokens.items() if name not in ids]:
        raise ExportError(f"{folder / 'vocab.json'} has no {', '.join(missing)}: it is not the vocabulary of a RoBERTa")
    spaced = bool(settings.get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = decoders.ByteLevel()
    sep, cls = ((tokens[name], ids[name]) for name in ("sep", "cls"))
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=spaced)
    special = [AddedToken(token, special=True, normalized=False, lstrip=name == "mask") for name, token in tokens.items()]
    tokenizer.add_special_tokens(special)
    return tokenizer


def _special_tokens(tokenizer: Tokenizer, folder: Path, family: Family, settings: Mapping[str, Any]) -> dict[str, int]:
    """cls, sep, mask, pad, unk -> id, as the checkpoint names them; those it does not have are left out."""
    stated = read_json(folder / "special_tokens_map.json") if (folder / "special_tokens_map.json").is_file() else {}
    found: dict[str, int] = {}
    for name, usual in BERT_TOKENS.items():
        token = settings.get(f"{name}_token") or stated.get(f"{name}_token")
        content = token["content"] if isinstance(token, dict) else token
        candidates = (content,) if content else (family.tokens[name], usual)
        numbers = [number for candidate in candidates if (number := tokenizer.token_to_id(candidate)) is not None]
        found |= {name: numbers[0]} if numbers else {}
    return found
