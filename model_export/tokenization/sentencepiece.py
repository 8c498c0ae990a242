"""A SentencePiece model file (Kudo & Richardson 2018) -> the same tokenizer in the `tokenizers` library.

The file is one protobuf message; the few of its fields that matter are declared below.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from model_export.errors import ExportError
from model_export.protobuf import DamagedError, message_classes, parsed

MESSAGES = message_classes(
    "sentencepiece",
    {
        "Piece": [("piece", 1, "bytes"), ("score", 2, "float"), ("type", 3, "int32")],
        "TrainerSpec": [("model_type", 3, "int32")],
        "NormalizerSpec": [("precompiled_charsmap", 2, "bytes")],
        "Model": [
            ("pieces", 1, "[Piece]"),
            ("trainer_spec", 2, "TrainerSpec"),
            ("normalizer_spec", 3, "NormalizerSpec"),
        ],
    },
    {"type": "1", "model_type": "1"},  # a normal piece, a unigram model
)
UNIGRAM = 1  # trainer_spec.model_type
CONTROL, USER_DEFINED = 3, 4  # a piece's type
Pieces = list[tuple[str, float]]  # piece, score; its place is its id


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a family's tokenizer does beyond its SentencePiece model."""

    front: Sequence[tuple[str, float]] = ()  # pieces before the model's own
    skipped: int = 0  # of the model's own, from the first
    back: Sequence[tuple[str, float]] = ()
    single: str
    pair: str
    lowers: bool = False  # letter case and accents are dropped before, where the settings do not say otherwise


SINGLE, PAIR = "<s> $A </s>", "<s> $A </s> </s> $B </s>"
KINDS = {
    "albert": Kind(single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", lowers=True),
    "xlm-roberta": Kind(
        front=[("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)],
        skipped=3,
        back=[("<mask>", 0.0)],
        single=SINGLE,
        pair=PAIR,
    ),
    "camembert": Kind(
        front=[("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)],
        skipped=1,
        back=[("<mask>", 0.0)],
        single=SINGLE,
        pair=PAIR,
    ),
}


def sentence_pieces(path: Path, kind: Kind, tokens: Mapping[str, str], settings: Mapping[str, Any]) -> Tokenizer:
    """`tokens`: cls, sep, mask, pad, unk -> what the family calls them. Raises ExportError where the file is not such a model."""
    model = _read(path)
    if model.trainer_spec.model_type != UNIGRAM:
        raise ExportError(
            f"{path} is not a unigram model: convert it with transformers, AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    texts = _texts(path, model)
    own = [(text, piece.score) for text, piece in zip(texts, model.pieces, strict=True)]
    pieces: Pieces = [*kind.front, *own[kind.skipped :], *kind.back]
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    if missing := [token for token in tokens.values() if token not in ids]:
        raise ExportError(f"{path} has no piece {', '.join(missing)}: it is not the vocabulary of this family")
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=ids[tokens["unk"]], byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(_normalizers(model, kind, settings))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    around = [(tokens[name], ids[tokens[name]]) for name in ("cls", "sep")]
    tokenizer.post_processor = processors.TemplateProcessing(single=kind.single, pair=kind.pair, special_tokens=around)
    typed = [(text, piece.type) for text, piece in zip(texts, model.pieces, strict=True)]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text, kind_of in typed if kind_of == USER_DEFINED])
    control = [
        AddedToken(text, normalized=False, special=True)
        for text, kind_of in typed
        if kind_of == CONTROL and text in ids
    ]
    tokenizer.add_special_tokens(
        [*control, *(AddedToken(tokens[name], normalized=False, special=True) for name in ("cls", "pad", "sep", "unk"))]
    )
    tokenizer.add_special_tokens([AddedToken(tokens["mask"], lstrip=True, normalized=False, special=True)])
    return tokenizer


def _normalizers(model: Any, kind: Kind, settings: Mapping[str, Any]) -> list[Any]:
    """The model's own character map, after what the family does to a text first."""
    steps: list[Any] = []
    if kind.lowers:
        steps = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not settings.get("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if settings.get("do_lower_case", True):
            steps.append(normalizers.Lowercase())
    if model.normalizer_spec.precompiled_charsmap:
        steps.append(_character_map(model.normalizer_spec.precompiled_charsmap))
    return [*steps, normalizers.Replace(Regex(" {2,}"), " ")]


def _texts(path: Path, model: Any) -> list[str]:
    try:
        return [piece.piece.decode("utf-8") for piece in model.pieces]
    except UnicodeDecodeError as error:
        raise ExportError(f"{path} is truncated or damaged: {error}") from error


def _character_map(content: bytes) -> normalizers.Normalizer:
    try:
        return normalizers.Precompiled(content)
    except Exception as error:  # the library raises a bare Exception
        raise ExportError(f"the SentencePiece model's character map is damaged: {error}") from error


def _read(path: Path) -> Any:
    try:
        model = parsed(MESSAGES["Model"], path.read_bytes())
    except (DamagedError, OSError) as error:
        raise ExportError(f"{path} is truncated or damaged: {error}") from error
    if not model.pieces:
        raise ExportError(f"{path} holds no pieces: it is not a SentencePiece model")
    return model
