"""A checkpoint's tokenizer files -> one tokenizer.json, its special tokens and its length limit."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    BertWordPieceTokenizer,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from model_export.checkpoints.checkpoint import read_json
from model_export.checkpoints.families import BERT_TOKENS, Family
from model_export.errors import ExportError
from model_export.tokenization.sentencepiece import KINDS, sentence_pieces

PIECES = ("spiece.model", "sentencepiece.bpe.model", "sentencepiece.model", "tokenizer.model")
FILES = "tokenizer.json, vocab.txt, vocab.json with merges.txt, or spiece.model"
WAY = "which transformers writes: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
UNLIMITED = 10**6  # transformers writes 1e30 where a tokenizer has no limit
SHORTEST = 3  # tokens that a text needs
FLAGS = (
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "keep_accents",
    "add_prefix_space",
)  # of tokenizer_config.json
NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
CLASSES = {
    f"{name}Tokenizer"
    for name in ("Albert", "Bert", "Camembert", "DistilBert", "Electra", "Ernie", "Roberta", "XLMRoberta")
}
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that take tokenizer.json as it is


@dataclass(slots=True)
class TokenizerFiles:
    tokenizer: Tokenizer
    special_tokens: Mapping[str, int]
    max_tokens: int
    source: str  # the file that it was read from
    assumed: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        self.tokenizer.save(str(path), pretty=False)


def read_vocabulary(
    folder: Path, config: Mapping[str, Any], family: Family, *, size: int, positions: int
) -> TokenizerFiles:
    """The tokenizer in `folder`, for a model of `size` word embeddings. Raises ExportError where there is none or it does not fit."""
    settings: dict[str, Any] = {"tokenizer_class": config.get("tokenizer_class")} | _settings(folder)
    assumed: dict[str, str] = {}
    source, tokenizer = _tokenizer(folder, family, settings, assumed)
    _keep_text_text(tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= size:
        raise ExportError(
            f"the tokenizer has id {largest}, but the model has only {size} word embeddings: they do not belong together"
        )
    special = _special_tokens(tokenizer, folder, family, settings)
    if tokenizer.num_special_tokens_to_add(False) < 2:
        raise ExportError("the tokenizer adds no [CLS] and [SEP] around a text: tokenizer.json has no post-processor")
    stated = settings.get("model_max_length", UNLIMITED)
    limit = min(positions, int(stated)) if stated < UNLIMITED else positions
    return TokenizerFiles(tokenizer=tokenizer, special_tokens=special, max_tokens=limit, source=source, assumed=assumed)


def _settings(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says, but for what it leaves open. Raises ExportError where it says nonsense."""
    path = folder / "tokenizer_config.json"
    settings = {key: value for key, value in (read_json(path) if path.is_file() else {}).items() if value is not None}
    for key in FLAGS:
        if not isinstance(settings.get(key, True), bool):
            raise ExportError(f"{path} sets {key} to {settings[key]!r}; it must be true or false")
    limit = settings.get("model_max_length", UNLIMITED)
    if not isinstance(limit, int | float) or limit < SHORTEST:
        raise ExportError(f"{path} sets model_max_length to {limit!r}; it must be a number from {SHORTEST} on")
    return settings


def _tokenizer(
    folder: Path, family: Family, settings: Mapping[str, Any], assumed: dict[str, str]
) -> tuple[str, Tokenizer]:
    if (folder / "tokenizer.json").is_file():
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises a bare Exception
            raise ExportError(f"{folder / 'tokenizer.json'} is damaged: {error}") from error
        _follow(tokenizer, settings, assumed)
        return "tokenizer.json", tokenizer
    source, tokenizer = _original(folder, family, settings, assumed)
    name = settings["tokenizer_class"]
    if name is not None and str(name).removesuffix("Fast") not in CLASSES:
        raise ExportError(
            f"{folder} names the tokenizer {name}, which this exporter does not make from {source}: it needs a tokenizer.json"
        )
    _refuse_added(folder, tokenizer, settings)
    return source, tokenizer


def _original(
    folder: Path, family: Family, settings: Mapping[str, Any], assumed: dict[str, str]
) -> tuple[str, Tokenizer]:
    """The tokenizer from the files that its family had before there was a tokenizer.json."""
    if (folder / "vocab.txt").is_file():
        return "vocab.txt", _word_piece(folder / "vocab.txt", settings, assumed)
    if (folder / "vocab.json").is_file():
        return "vocab.json and merges.txt", _byte_pairs(folder, family.tokens, settings)
    for name in PIECES:
        if (folder / name).is_file() and family.pieces:
            return name, sentence_pieces(folder / name, KINDS[family.pieces], family.tokens, settings)
    raise ExportError(f"{folder} has no tokenizer that this exporter reads: {FILES}")


def _follow(tokenizer: Tokenizer, settings: Mapping[str, Any], assumed: dict[str, str]) -> None:
    """Where tokenizer_config.json and tokenizer.json differ the former counts, as in transformers."""
    if settings["tokenizer_class"] in GENERIC:
        return
    normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        for key, name in NORMALIZER.items():
            setattr(normalizer, name, settings.get(key, getattr(normalizer, name)))
        if not normalizer.lowercase and "do_lower_case" not in settings:
            assumed["do_lower_case"] = (
                "false, as tokenizer.json has it; transformers takes true where tokenizer_config.json is silent"
            )
    if isinstance(splitter, pre_tokenizers.ByteLevel):
        splitter.add_prefix_space = settings.get("add_prefix_space", splitter.add_prefix_space)


def _refuse_added(folder: Path, tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
    """Tokens that were added to a vocabulary later are in tokenizer.json alone as this exporter needs them."""
    path, stated = folder / "added_tokens.json", settings.get("added_tokens_decoder")
    added = list(read_json(path)) if path.is_file() else []
    for one in stated.values() if isinstance(stated, Mapping) else ():
        if isinstance(one, Mapping) and not (
            one.get("special") and tokenizer.token_to_id(str(one.get("content"))) is not None
        ):
            added.append(str(one.get("content")))
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    if unknown := [content for content in added if content not in known]:
        raise ExportError(f"{folder} adds tokens to the vocabulary ({unknown[0]}): it needs a tokenizer.json, {WAY}")


def _keep_text_text(tokenizer: Tokenizer) -> None:
    """A unigram model has its special tokens among its pieces and would read `</s>` in a text as one: split it before the model sees it.

    Other models cannot: WordPiece's texts are split at punctuation, and no merges of BPE lead to a special token.
    """
    if not isinstance(tokenizer.model, models.Unigram):
        return
    names = [
        token.content
        for token in tokenizer.get_added_tokens_decoder().values()
        if token.special and len(token.content) > 1
    ]
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
        assumed["do_lower_case"] = (
            "true, as transformers does where tokenizer_config.json is silent; a cased model needs it set to false"
        )
    lower = settings.get("do_lower_case", True)
    built = BertWordPieceTokenizer(
        ids,
        lowercase=lower,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    tokenizer = Tokenizer.from_str(built.to_str())
    tokenizer.add_special_tokens(
        [AddedToken(content, special=True) for content in BERT_TOKENS.values() if content in ids]
    )
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
    spaced = settings.get("add_prefix_space", False)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = decoders.ByteLevel()
    sep, cls = ((tokens[name], ids[name]) for name in ("sep", "cls"))
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=spaced)
    special = [
        AddedToken(token, special=True, normalized=False, lstrip=name == "mask") for name, token in tokens.items()
    ]
    tokenizer.add_special_tokens(special)
    return tokenizer


def _special_tokens(tokenizer: Tokenizer, folder: Path, family: Family, settings: Mapping[str, Any]) -> dict[str, int]:
    """cls, sep, mask, pad, unk -> id, as the checkpoint names them; those it does not have are left out."""
    stated = read_json(folder / "special_tokens_map.json") if (folder / "special_tokens_map.json").is_file() else {}
    found: dict[str, int] = {}
    for name, usual in BERT_TOKENS.items():
        token = settings.get(f"{name}_token") or stated.get(f"{name}_token")
        content = token.get("content") if isinstance(token, dict) else token
        if content is not None and not isinstance(content, str):
            raise ExportError(
                f"{folder} says in tokenizer_config.json or special_tokens_map.json that {name}_token is {content!r}; it must be a text"
            )
        candidates = (content,) if content else (family.tokens[name], usual)
        numbers = [number for candidate in candidates if (number := tokenizer.token_to_id(candidate)) is not None]
        found |= {name: numbers[0]} if numbers else {}
    return found
