"""Makes the golden answers of several passes: whole words, masks filled together, and the likelihood of sentences.

    python tests/golden/makers/make_sentences.py

It needs torch and transformers; the tests need neither. `sentences/FAMILY.json` has the answers for the golden
checkpoint of each family. One pass at a time, in float64, as the papers and the service's documentation describe them.
"""

import json
from typing import Any

import torch
import transformers
from checkpoints import CHECKPOINTS, FAMILIES
from files import GOLDEN, write_json
from make import loaded, tokenizer_of

SCORED = (
    "The cat sat on the mat.",
    "Unaffable RUNNING, walked?",
    "我爱北京天安门。",
    "I like 北京 and tea 😀!",
    "naïve café Zürich",
    "xyzzy 123 @home (big) -- it's",
    "a",
)
WORDS = (
    ("the {mask} is big", ["unaffable", "cat", "running", "likely", "walked"], None),
    ("The {mask} sat on the {mask}.", ["walks", "dog", "walker"], 2),
    ("我爱{mask}。", ["北京", "天安门", "天安", "中"], None),
)
JOINT = (
    ("the {mask} {mask} is big", 4, 4),
    ("The {mask} sat on the {mask}. {mask}", 3, 2),
    ("我爱{mask}{mask}{mask}。", 5, 3),
    ("a {mask}", 2, 2),
)


class Reference:
    """A masked language model that is asked for one text at a time."""

    def __init__(self, name: str) -> None:
        kind = getattr(transformers, CHECKPOINTS[name].tasks["fill_mask"])
        self.model = loaded(kind, GOLDEN / name).double()
        self.tokenizer = tokenizer_of(CHECKPOINTS[name], GOLDEN / name)
        self.mask_id = self.tokenizer.mask_token_id

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        found = self.tokenizer(text, return_token_type_ids=True)
        return found["input_ids"], found["token_type_ids"]

    def logs(self, ids: list[int]) -> torch.Tensor:
        """[length, vocabulary] log-probabilities."""
        return self.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)

    def target_ids(self, word: str) -> list[int]:
        own = self.tokenizer.get_vocab().get(word)
        return [own] if own is not None else self.tokenizer(word, add_special_tokens=False)["input_ids"]


def score(reference: Reference, text: str, variant: str) -> dict[str, Any]:
    found = reference.tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    ids, words = found["input_ids"], found.word_ids()
    own = [i for i, special in enumerate(found["special_tokens_mask"]) if not special]
    tokens = []
    for position in own:
        masked = list(ids)
        masked[position] = reference.mask_id
        for later in own:
            if variant == "within_word" and later > position and words[later] == words[position]:
                masked[later] = reference.mask_id
        start, stop = found["offset_mapping"][position]
        log = float(reference.logs(masked)[position, ids[position]])
        piece = reference.tokenizer.convert_ids_to_tokens(ids[position])
        tokens.append({"piece": piece, "start": start, "stop": stop, "word": words[position], "log_probability": log})
    return {
        "text": text,
        "variant": variant,
        "tokens": tokens,
        "words": len({words[position] for position in own}),
        "cost_tokens": len(own) * len(ids),
    }


def fill_words(reference: Reference, template: str, targets: list[str], top_k: int | None) -> dict[str, Any]:
    text = template.format(mask=reference.tokenizer.mask_token)
    ids, _ = reference.encode(text)
    known = {word: reference.target_ids(word) for word in targets}
    known = {word: pieces for word, pieces in known.items() if reference.tokenizer.unk_token_id not in pieces}
    answer = []
    for mask in [i for i, token in enumerate(ids) if token == reference.mask_id]:
        candidates = []
        for word, pieces in known.items():
            total = 0.0
            for done in range(len(pieces)):
                filled = pieces[:done] + [reference.mask_id] * (len(pieces) - done)
                total += float(reference.logs(ids[:mask] + filled + ids[mask + 1 :])[mask + done, pieces[done]])
            candidates.append({"target": word, "tokens": pieces, "log_probability": total})
        candidates.sort(key=lambda one: -one["log_probability"] / len(one["tokens"]))
        answer.append(candidates[: top_k or 5])
    return {"inputs": text, "targets": list(known), "top_k": top_k, "answer": answer}


def fill_together(reference: Reference, template: str, beam: int, top_k: int) -> dict[str, Any]:
    """A beam over texts; each fills the mask with the most probable candidate of all of its masks."""
    text = template.format(mask=reference.tokenizer.mask_token)
    ids, _ = reference.encode(text)
    masks = [i for i, token in enumerate(ids) if token == reference.mask_id]
    states: list[tuple[float, dict[int, int], list[int]]] = [(0.0, {}, [])]
    for _ in masks:
        new = []
        for total, filled, order in states:
            logs = reference.logs([filled.get(i, token) for i, token in enumerate(ids)])
            open_masks = [i for i in masks if i not in filled]
            chosen = max(open_masks, key=lambda i: float(logs[i].max()))
            best = logs[chosen].topk(beam)
            for log, piece in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                new.append((total + log, filled | {chosen: piece}, [*order, chosen]))
        new.sort(key=lambda one: -one[0])
        states = []
        for state in new:
            if all(state[1] != kept[1] for kept in states) and len(states) < beam:
                states.append(state)
    answer = [
        {
            "log_probability": total,
            "tokens": [filled[i] for i in masks],
            "order": [masks.index(i) for i in order],
            "sequence": reference.tokenizer.decode(
                [filled.get(i, token) for i, token in enumerate(ids)],
                skip_special_tokens=True,
                clean_up_tokenization_spaces=False,
            ),
        }
        for total, filled, order in states[:top_k]
    ]
    return {"inputs": text, "beam": beam, "top_k": top_k, "answer": answer}


def make(name: str) -> None:
    reference = Reference(name)
    content = {
        "score": [score(reference, text, variant) for text in SCORED for variant in ("within_word", "original")],
        "words": [fill_words(reference, *case) for case in WORDS],
        "joint": [fill_together(reference, *case) for case in JOINT],
    }
    rounded = json.loads(json.dumps(content), parse_float=lambda number: round(float(number), 7))
    write_json(GOLDEN / "sentences" / f"{name}.json", rounded)


if __name__ == "__main__":
    for name in FAMILIES:
        make(name)
