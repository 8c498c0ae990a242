"""Reads a checkpoint's tokenizer files into one tokenizer.json, its special tokens and its length limit."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from .artifact.manifest import MAX_DESCRIPTION_BYTES, TOKENIZER, open_file
from .checkpoint import optional_json
from .errors import ExportError
from .facts import (
    ENCODER_CONFIG,
    FACTS,
    NORMALIZER,
    TOKENIZER_CONFIG,
    TOKENS_MAP,
    Files,
    read_fact,
)
from .families import BERT_TOKENS, Family

SENTENCEPIECE = ("spiece.model", "spm.model", "sentencepiece.bpe.model", "sentencepiece.model", "tokenizer.model")
FILES = "tokenizer.json, vocab.txt, or vocab.json with merges.txt"
SOLUTION = "which transformers 4 writes (5: other ids): AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
UNLIMITED = 10**6  # transformers writes 1e30 if a tokenizer has no limit
MIN_TOKENS = 3  # of a text: [CLS], a token, [SEP]
CLASSES = {f"{name}Tokenizer" for name in ("Bert", "DistilBert", "Electra", "Ernie", "Roberta")}  # built from FILES
REFUSED = {  # classes that read a text by code which a tokenizer.json beside them does not hold
    "RoFormerTokenizer": "finds Chinese words by jieba, not served here: choose a model of characters, whose files "
    "name a BertTokenizer",
    "BertJapaneseTokenizer": "finds Japanese words by a dictionary, not served here: with a tokenizer.json that gives "
    "the same ids, set tokenizer_class to PreTrainedTokenizerFast",
    "BertweetTokenizer": "replaces names, links and emoji (normalization), not served here: set normalization to false "
    "in tokenizer_config.json and send texts that are normalized",
}
UNCHECKED = ("BertweetTokenizer", "PhobertTokenizer")  # built from other files in transformers
TOKEN_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")  # of an AddedToken
WITHOUT_TYPES = ("DistilBertTokenizer", "MPNetTokenizer")  # their model_input_names, if the files state none
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # these ignore tokenizer_config.json's flags
Stated = list[tuple[int | None, Mapping[str, Any]]]  # the id of a token, if it is stated, and its fields


@dataclass(slots=True)
class TokenizerFiles:
    """A checkpoint's tokenizer, without truncation and padding."""

    tokenizer: Tokenizer
    special_tokens: Mapping[str, int]  # cls, sep, mask, pad, unk -> id; those that the tokenizer has; bos, eos if apart
    max_tokens: int  # per sequence, special tokens included
    source: str  # the file that the tokenizer was read from
    assumed: dict[str, str]  # setting missing from the files -> the default, and why


def read_tokenizer(folder: Path, files: Files, family: Family, *, size: int, positions: int) -> TokenizerFiles:
    """The tokenizer in `folder`, for a model of `size` word embeddings and `positions` positions.

    `files` are the checkpoint's. Raises ExportError if there is no tokenizer, it is damaged or not supported, or it
    does not fit the model.
    """
    settings, assumed = _settings(folder), dict[str, str]()
    mapped = {} if "added_tokens_decoder" in settings else optional_json(folder / TOKENS_MAP)  # as in transformers
    files = {**files, TOKENIZER_CONFIG: settings, TOKENS_MAP: mapped}
    limit = read_fact("max_seq_length", files, assumed)
    if limit is not None and (not isinstance(limit, int | float) or limit < MIN_TOKENS):
        raise ExportError(f"max_seq_length or model_max_length is {limit!r}; it must be a number from {MIN_TOKENS} on")
    settings["tokenizer_class"] = read_fact("tokenizer_class", files, assumed) or family.tokenizer
    names = _stated_names(folder, files, assumed)
    _check_class(folder, settings, assumed)
    source, tokenizer = _tokenizer(folder, family, settings, names, assumed)
    stated, special = _stated_tokens(folder, files), {*family.tokens.values(), *names.values()}
    if left_out := _add_tokens(tokenizer, folder, stated, special, size):
        assumed["added tokens"] = f"without {len(left_out)} that have no word embedding, such as {left_out[0]}"
    _escape_special_tokens(tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = {number: token for token, number in tokenizer.get_vocab().items() if token}  # "": an empty line of vocab.txt
    if (largest := max(ids, default=-1)) >= size:
        mismatch = f"the tokenizer has id {largest} ({ids[largest]}), but the model has only {size} word embeddings"
        added = largest in tokenizer.get_added_tokens_decoder()
        solution = f"remove it from the added tokens of {source}" if added else "they do not belong together"
        raise ExportError(f"{mismatch}: {solution}")
    if tokenizer.num_special_tokens_to_add(False) < 2:
        raise ExportError("the tokenizer adds no [CLS] and [SEP] to a text: tokenizer.json has no post-processor")
    if "segments" not in family.fixed and not _gives_types(settings):  # without segments no types are read
        _clear_types(tokenizer)
    if files.get(ENCODER_CONFIG, {}).get("do_lower_case") is True:  # sentence-transformers adds a normalizer
        own = getattr(tokenizer.normalizer, "lowercase", None)
        if read_fact("do_lower_case", {**files, TOKENIZER: {"lowercase": own}}, assumed) != own:
            after = filter(None, [tokenizer.normalizer])
            tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *after])
    return TokenizerFiles(
        tokenizer=tokenizer,
        special_tokens=_special_tokens(tokenizer, family, names),
        max_tokens=min(positions, int(limit or positions)),
        source=source,
        assumed=assumed,
    )


def _settings(folder: Path) -> dict[str, Any]:
    """The values of tokenizer_config.json that are not null. Raises ExportError if a value is not valid."""
    path = folder / TOKENIZER_CONFIG
    settings = {key: value for key, value in optional_json(path).items() if value is not None}
    for key in (*NORMALIZER, "add_prefix_space"):
        if not isinstance(settings.get(key, True), bool):
            raise ExportError(f"{path} sets {key} to {settings[key]!r}; it must be true or false")
    limit = settings.setdefault("model_max_length", settings.get("max_len"))  # the old name
    return settings | {"model_max_length": None} if isinstance(limit, int | float) and limit >= UNLIMITED else settings


def _class_of(settings: Mapping[str, Any]) -> str:
    """The tokenizer's class, without the suffix Fast; "None" if none is stated."""
    return str(settings["tokenizer_class"]).removesuffix("Fast")


def _check_class(folder: Path, settings: Mapping[str, Any], assumed: dict[str, str]) -> None:
    """Notes what is assumed about the tokenizer's class and settings. Raises ExportError for a class in REFUSED."""
    name = _class_of(settings)
    if name in REFUSED and (name != "BertweetTokenizer" or settings.get("normalization")):
        raise ExportError(f"{folder} has a {name}, which {REFUSED[name]}")
    if name in UNCHECKED:
        assumed["tokenizer_class"] = f"that of tokenizer.json; transformers builds a {name} from other files"
    if settings.get("truncation_side") == "left":
        assumed["truncation_side"] = "right, the default of truncate; tokenizer_config.json sets left"


def _tokenizer(
    folder: Path, family: Family, settings: Mapping[str, Any], names: Mapping[str, str], assumed: dict[str, str]
) -> tuple[str, Tokenizer]:
    """The file that counts, and the tokenizer read from it."""
    if (folder / "tokenizer.json").is_file():
        _check_size(folder / "tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises a bare Exception
            raise ExportError(f"{folder / 'tokenizer.json'} is damaged: {error}") from error
        _apply_tokenizer_config(tokenizer, settings, assumed)
        return "tokenizer.json", tokenizer
    if (folder / "vocab.txt").is_file():
        source, tokenizer = "vocab.txt", _word_piece(folder / "vocab.txt", settings, names, assumed)
    elif (folder / "vocab.json").is_file():
        source, tokenizer = "vocab.json and merges.txt", _byte_pairs(folder, family.tokens, settings)
    else:
        for name in SENTENCEPIECE:
            if (folder / name).is_file():
                raise ExportError(f"{folder} has {name} and no tokenizer.json, {SOLUTION}")
        raise ExportError(f"{folder} has no tokenizer that is supported: {FILES}")
    name = settings["tokenizer_class"]
    if name is not None and _class_of(settings) not in CLASSES:
        raise ExportError(f"{folder} has a {name}, which cannot be built from {source}: it needs a tokenizer.json")
    return source, tokenizer


def _apply_tokenizer_config(tokenizer: Tokenizer, settings: Mapping[str, Any], assumed: dict[str, str]) -> None:
    """Overrides tokenizer.json by the flags of tokenizer_config.json, as transformers does."""
    if settings["tokenizer_class"] in GENERIC:
        return
    normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer

    def apply(part: Any, key: str, name: str, *, usual: bool) -> None:
        found = read_fact(key, {TOKENIZER_CONFIG: settings, TOKENIZER: {name: getattr(part, name)}}, assumed)
        setattr(part, name, found)
        if key not in settings and found not in (None, usual):
            reason = f"transformers assumes {str(usual).lower()} if tokenizer_config.json has no {key}"
            assumed[key] = f"{str(found).lower()}, as in tokenizer.json; {reason}"

    if isinstance(normalizer, normalizers.BertNormalizer):
        for key, name in NORMALIZER.items():  # null strips accents if it lowercases
            apply(normalizer, key, name, usual=key != "strip_accents" or normalizer.lowercase)
    if isinstance(splitter, pre_tokenizers.ByteLevel):
        apply(splitter, "add_prefix_space", "add_prefix_space", usual=False)


def _add_tokens(tokenizer: Tokenizer, folder: Path, stated: Stated, special: set[str], size: int) -> list[str]:
    """Adds the tokens that the files beside the vocabulary state (`[E1]` around an entity), as transformers does.

    A piece of the vocabulary, such as `[unused1]`, keeps its id, and a new token takes the next id. Returns the tokens
    that are left out, because the model has only `size` word embeddings. Raises ExportError if a file states another
    id for a new token.
    """
    left_out, known = [], {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    special = special | {fields["content"] for _, fields in stated if fields.get("special")}
    for number, fields in stated:
        content = fields["content"]
        if not content or content in known:
            continue
        piece = tokenizer.token_to_id(content)
        if piece is None and tokenizer.get_vocab_size() >= size:
            left_out.append(content)
            continue
        flags = {flag: bool(fields[flag]) for flag in TOKEN_FLAGS if flag in fields}
        tokenizer.add_tokens([AddedToken(content, special=content in special, **flags)])
        known.add(content)
        if piece is None and number not in (None, found := tokenizer.token_to_id(content)):
            mismatch = f"{folder} adds the token {content} with the id {number}, but the next id is {found}"
            raise ExportError(f"{mismatch}: it needs a tokenizer.json with this token, {SOLUTION}")
    return left_out


def _stated_tokens(folder: Path, files: Files) -> Stated:
    """The tokens that the files beside the vocabulary state, in the order of transformers."""
    numbered = files[TOKENIZER_CONFIG].get("added_tokens_decoder")
    if not isinstance(numbered, Mapping):  # it replaces this file, and TOKENS_MAP
        added = optional_json(folder / "added_tokens.json")
        numbered = {str(number): {"content": content} for content, number in added.items()}
    special: list[Any] = []
    for file, key in product((TOKENIZER_CONFIG, TOKENS_MAP), ("additional_special_tokens", "extra_special_tokens")):
        value = files[file].get(key, [])
        special += value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else []
    stated: list[tuple[Any, Any]] = [(int(number), one) for number, one in numbered.items() if number.isdecimal()]
    stated.sort(key=lambda one: one[0])
    stated += [(None, {**(one if isinstance(one, Mapping) else {"content": one}), "special": True}) for one in special]
    return [one for one in stated if isinstance(one[1], Mapping) and isinstance(one[1].get("content"), str)]


def _escape_special_tokens(tokenizer: Tokenizer) -> None:
    """Splits the name of a special token in a text, so that a unigram model, which has it as a piece, does not find it.

    Other models never find it: WordPiece splits texts at punctuation, and no merges of BPE lead to a special token.
    """
    if not isinstance(tokenizer.model, models.Unigram):
        return
    tokens = tokenizer.get_added_tokens_decoder().values()
    names = [token.content for token in tokens if token.special and len(token.content) > 1]
    inside = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in names)
    split = pre_tokenizers.Split(Regex(inside), "merged_with_previous")
    before = [tokenizer.pre_tokenizer] if tokenizer.pre_tokenizer is not None else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, split])


def _word_piece(
    vocabulary: Path, settings: Mapping[str, Any], names: Mapping[str, str], assumed: dict[str, str]
) -> Tokenizer:
    """BERT's tokenizer from a vocab.txt with a piece on each line; only LF ends a line."""
    _check_size(vocabulary)
    try:
        pieces = vocabulary.read_text("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ExportError(f"{vocabulary} is truncated or damaged: {error}") from error
    ids = {piece.rstrip("\r"): i for i, piece in enumerate(pieces)}
    tokens = {name: names.get(name, usual) for name, usual in BERT_TOKENS.items()}
    for name in ("cls", "sep", "unk"):
        if tokens[name] not in ids:
            raise ExportError(f"{vocabulary} has no {tokens[name]}: it is not the vocabulary of a BERT")
    if "do_lower_case" not in settings:
        reason = "as in transformers if tokenizer_config.json has no do_lower_case; a cased model needs it set to false"
        assumed["do_lower_case"] = f"true, {reason}"
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=tokens["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    sep, cls = ((tokens[name], ids[tokens[name]]) for name in ("sep", "cls"))
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens.values() if token in ids])
    return tokenizer


def _byte_pairs(folder: Path, tokens: Mapping[str, str], settings: Mapping[str, Any]) -> Tokenizer:
    """RoBERTa's form of GPT-2's byte-level BPE: `<mask>` includes the space to its left."""
    if not (folder / "merges.txt").is_file():
        raise ExportError(f"{folder / 'merges.txt'} is missing: vocab.json alone is not a tokenizer")
    for name in ("vocab.json", "merges.txt"):
        _check_size(folder / name)
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
    special = [AddedToken(text, special=True, normalized=False, lstrip=name == "mask") for name, text in tokens.items()]
    tokenizer.add_special_tokens(special)
    return tokenizer


def _check_size(path: Path) -> None:
    """Raises ExportError for a file that the library should not read: it takes about ten times its size of memory."""
    try:
        open_file(path, MAX_DESCRIPTION_BYTES).close()
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from error


def _gives_types(settings: Mapping[str, Any]) -> bool:
    """Whether transformers passes the model the types of this tokenizer."""
    inputs = settings.get("model_input_names")
    return "token_type_ids" in inputs if isinstance(inputs, list) else _class_of(settings) not in WITHOUT_TYPES


def _clear_types(tokenizer: Tokenizer) -> None:
    """Makes the tokenizer give both texts of a pair the type 0, which transformers assumes without types."""
    processor = tokenizer.post_processor
    if isinstance(processor, processors.BertProcessing):
        frame = tokenizer.encode("")
        cls, sep = frame.tokens
        processor = processors.TemplateProcessing(
            single=[cls, "$A", sep],
            pair=[cls, "$A", sep, "$B", sep],
            special_tokens=list(zip(frame.tokens, frame.ids, strict=True)),
        )
    else:
        processor.__setstate__(re.sub(rb'"type_id":\d+', b'"type_id":0', processor.__getstate__()))
    tokenizer.post_processor = processor


def _stated_names(folder: Path, files: Files, assumed: dict[str, str]) -> dict[str, str]:
    """cls, sep, mask, pad, unk, bos, eos -> the token that the checkpoint's files name so."""
    stated = {key: read_fact(key, files, assumed) for key in FACTS if key.endswith("_token")}
    if wrong := [key for key, token in stated.items() if not isinstance(token, str | None)]:
        found = f"{folder} sets {wrong[0]} to {stated[wrong[0]]!r} in {TOKENIZER_CONFIG} or {TOKENS_MAP}"
        raise ExportError(f"{found}; it must be a string")
    return {key.removesuffix("_token"): token for key, token in stated.items() if token}


def _special_tokens(tokenizer: Tokenizer, family: Family, names: Mapping[str, str]) -> dict[str, int]:
    """cls, sep, mask, pad, unk -> id, by `names` or by the usual spelling; without those that the tokenizer lacks.

    It has bos and eos too, if they are stated and are none of these.
    """
    found: dict[str, int] = {}
    for name in (*BERT_TOKENS, "bos", "eos"):
        usual = (family.tokens[name], BERT_TOKENS[name]) if name in BERT_TOKENS else ()
        candidates = (names[name],) if name in names else usual
        numbers = [number for candidate in candidates if (number := tokenizer.token_to_id(candidate)) is not None]
        if numbers and (name in BERT_TOKENS or numbers[0] not in found.values()):
            found[name] = numbers[0]
    return found
