"""Small tokenizer files of each family: the original ones for WordPiece and BPE, tokenizer.json for SentencePiece."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import sentencepiece
import tokenizers
import transformers
from texts import CHINESE, LETTERS, PAIRS, TEXTS, WORDS, word_pieces

Writer = Callable[[Path], int]  # writes the files, returns the number of ids
CORPUS = [
    *TEXTS,
    *(text for pair in PAIRS for text in pair),
    *WORDS.split(),
    *CHINESE,
    LETTERS,
    "。，？！!?.,()'\"-/:;@_0123",
    "éïü",
    "😀",
]
ORIGINAL_FILES = ("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "spm.model", "sentencepiece.bpe.model")


def word_piece(folder: Path) -> int:
    (folder / "vocab.txt").write_text("\n".join(word_pieces()) + "\n", "utf-8")
    settings(folder, do_lower_case=True)
    return len(word_pieces())


def berts_word_piece(folder: Path) -> int:
    ids = word_piece(folder)
    settings(folder, do_lower_case=True, tokenizer_class="BertTokenizer")
    return ids


def _word_piece_of_mpnet(folder: Path) -> int:
    """vocab.txt with RoBERTa's special tokens, but [UNK]."""
    names = {"[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>", "[PAD]": "<pad>"}
    first = ("<s>", "<pad>", "</s>")  # the model's position offset is that of a padding token of id 1
    pieces = [*first, *(one for piece in word_pieces() if (one := names.get(piece, piece)) not in first)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    settings(folder, do_lower_case=True)
    return len(pieces)


def trained_byte_pairs(special: list[str]) -> tokenizers.ByteLevelBPETokenizer:
    trained = tokenizers.ByteLevelBPETokenizer()
    texts = [*CORPUS, *(f" {word}" for word in WORDS.split())]
    trained.train_from_iterator(texts, vocab_size=290, min_frequency=1, special_tokens=special)
    return trained


def byte_pairs(folder: Path) -> int:
    """vocab.json and merges.txt; `<mask>` includes the space to its left, as in the published RoBERTa."""
    trained_byte_pairs(["<s>", "<pad>", "</s>", "<unk>"]).save_model(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    vocabulary["<mask>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    flags = {"lstrip": True, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    settings(folder, mask_token={"__type": "AddedToken", "content": "<mask>"} | flags)
    return len(vocabulary)


def byte_pairs_of_modernbert(folder: Path) -> int:
    """tokenizer.json of a byte-level BPE with BERT's special tokens, as the published ModernBERT."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    trained = trained_byte_pairs(special)
    trained.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    mask = tokenizers.AddedToken("[MASK]", lstrip=True, special=True)
    trained.add_special_tokens([*special[:-1], mask])
    trained.save(str(folder / "tokenizer.json"))
    names = {f"{token[1:-1].lower()}_token": token for token in special}
    settings(folder, tokenizer_class="PreTrainedTokenizerFast", **names)
    return trained.get_vocab_size()


def unigrams(name: str, *, extra: int, **options: object) -> Writer:
    """tokenizer.json of a SentencePiece model with a few character rules; the family adds `extra` ids to its pieces."""

    def write(folder: Path) -> int:
        model, rules = io.BytesIO(), folder / "rules.tsv"
        rules.write_text(
            "".join(f"{0xFEE0 + ord(c):X}\t{ord(c):X}\n" for c in "!(),?") + "1F469 200D 1F469\t57\n", "utf-8"
        )
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS * 20),
            model_writer=model,
            vocab_size=200,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_tsv=str(rules),
            minloglevel=2,
            **options,
        )
        rules.unlink()
        (folder / name).write_bytes(model.getvalue())
        settings(folder)
        return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).vocab_size() + extra

    return made_fast(write)


def made_fast(write: Writer) -> Writer:
    """The same tokenizer as transformers saves it: a tokenizer.json without the original files."""

    def converted(folder: Path) -> int:
        ids = write(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        remove(folder, "tokenizer_config.json", *ORIGINAL_FILES)
        tokenizer.save_pretrained(folder)
        remove(folder, "special_tokens_map.json", *ORIGINAL_FILES)  # of transformers 4
        return ids

    return converted


def remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def settings(folder: Path, **known: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(known) + "\n", "utf-8")


ALBERT = unigrams(
    "spiece.model",
    extra=0,
    pad_id=0,
    unk_id=1,
    bos_id=-1,
    eos_id=-1,
    control_symbols="[CLS],[SEP],[MASK]",
    user_defined_symbols="(,)",
)
word_piece_of_mpnet = made_fast(_word_piece_of_mpnet)
XLM_ROBERTA = unigrams("sentencepiece.bpe.model", extra=2)  # <pad> and <mask>
CAMEMBERT = unigrams("sentencepiece.bpe.model", extra=5)  # four in front, <mask> at the end
DEBERTA = unigrams(
    "spm.model",
    extra=1,  # [MASK]
    pad_id=0,
    bos_id=1,
    eos_id=2,
    unk_id=3,
    pad_piece="[PAD]",
    bos_piece="[CLS]",
    eos_piece="[SEP]",
    unk_piece="[UNK]",
)
