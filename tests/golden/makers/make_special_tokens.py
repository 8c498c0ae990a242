"""Makes the golden checkpoints with special tokens of their own, and the answers of transformers to texts with these.

    python tests/golden/makers/make_special_tokens.py

It needs torch and transformers; the tests need neither. `FAMILY-entities` has a small checkpoint with random
weights and `answers.json`: of texts with the checkpoint's own special tokens, and of texts with the standard ones too.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from checkpoints import SIZES, Checkpoint, masked
from files import GOLDEN, emptied, report, write_json
from make import loaded, randomized
from make_tokens import tokens, vectors
from tokenizers_of_families import XLM_ROBERTA, byte_pairs, made_fast, remove, word_piece

TOKENS = 40  # of a sequence
STRIDE = 5
OWN = ("[E1]", "[/E1]", "<ent>")
SMALL = SIZES | {"num_hidden_layers": 1, "max_position_embeddings": TOKENS}
AFTER_PAD = SMALL | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
AFTER_PAD |= {"max_position_embeddings": TOKENS + 2}
LONG = "[E1] the cat [/E1] sat on the mat <ent> and the dog walked to the river. " * 6
OWN_TEXTS = [
    ("[E1] my dog [/E1] is hairy", None),
    ("the[E1]cat[/E1]sat,on[E1]", None),
    ("[e1] the cat [ / E1 ] [E1", None),
    ("<ent>", None),
    ("the cat <ent> sat", "on the <ent>mat"),
    ("  [E1]\tthe   dog [/E1]. ", None),
    (LONG, None),
    (LONG, "the <ent> dog"),
]


def writer(write: Callable[[Path], int]) -> Callable[[Path], int]:
    def with_own_tokens(folder: Path) -> int:
        made_fast(write)(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        own = [transformers.AddedToken(token, lstrip=token == "<ent>", special=True) for token in OWN]
        tokenizer.add_tokens(own, special_tokens=True)
        tokenizer.save_pretrained(folder)
        remove(folder, "special_tokens_map.json")
        return len(tokenizer)

    return with_own_tokens


CHECKPOINTS = {
    "bert": masked("Bert", SMALL | {"type_vocab_size": 2}, writer(word_piece), segments=2),
    "roberta": masked("Roberta", AFTER_PAD, writer(byte_pairs), segments=1),
    "xlm-roberta": masked("XLMRoberta", AFTER_PAD, writer(XLM_ROBERTA), segments=1),
}


def all_texts(tokenizer: Any) -> list[tuple[str, str | None]]:
    cls, sep, mask, pad, unk = (getattr(tokenizer, f"{name}_token") for name in ("cls", "sep", "mask", "pad", "unk"))
    title = f"the cat {sep} it sat on the mat"
    return [
        (title, None),
        (f"{cls} {title}{sep}", None),
        (f"the {mask} {pad}{unk} [E1] dog [/E1] {sep}cat", None),
        (title, f"my dog {sep} is hairy"),
        (f"{title} " * 9, None),
        (f"{title} " * 9, title),
        (sep, None),
    ]


def answer(folder: Path, tokenizer: Any, pair: tuple[str, str | None]) -> dict[str, Any]:
    text, second = pair
    cut = tokenizer(text, second, truncation="longest_first", max_length=TOKENS)["input_ids"]
    found = tokens(tokenizer, text, second) | {"cut": cut}
    if second is None:
        windows = tokenizer(text, truncation=True, max_length=TOKENS, stride=STRIDE, return_overflowing_tokens=True)
        found["windows"] = windows["input_ids"]
        if len(found["ids"]) <= TOKENS and tokenizer.pad_token_id not in found["ids"]:  # RoBERTa counts no pad's place
            found["vectors"] = vectors(folder, tokenizer, text)
    return found


def filled(folder: Path, kind: str, tokenizer: Any, text: str) -> dict[str, Any]:
    pipeline = transformers.pipeline(
        "fill-mask", loaded(getattr(transformers, kind), folder), tokenizer=tokenizer, top_k=3
    )
    return {"text": text, "answer": pipeline(text)}


def make(name: str, checkpoint: Checkpoint) -> None:
    folder = emptied(GOLDEN / f"{name}-entities")
    randomized(checkpoint, folder).to(torch.float16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    mask, sep = tokenizer.mask_token, tokenizer.sep_token
    content = {
        "own": [answer(folder, tokenizer, pair) for pair in OWN_TEXTS],
        "all": [answer(folder, tokenizer, pair) for pair in all_texts(tokenizer)],
        "masked_own": filled(folder, checkpoint.kind, tokenizer, f"[E1] the {mask} [/E1] sat on the mat"),
        "masked_all": filled(folder, checkpoint.kind, tokenizer, f"the cat {sep} [E1] my {mask} [/E1]"),
    }
    write_json(folder / "answers.json", content)
    report(folder)


if __name__ == "__main__":
    for name, checkpoint in CHECKPOINTS.items():
        make(name, checkpoint)
