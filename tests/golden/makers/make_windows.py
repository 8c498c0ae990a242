"""Makes the golden answers for windows of long texts, a slow reference: transformers on each window alone.

    python tests/golden/makers/make_windows.py

It needs torch, transformers and sentence-transformers 6.2.0; the tests need none of them. The windows are those of
`return_overflowing_tokens`; each counts with the tokens that it adds to the one before it. `windows/FAMILY.json` has,
by text and stride, the number of windows, the mean vector of each pooling, and the mean and the largest probability of
each label. `windows/sentence.json` has the vectors of sentence-transformers' modules up to Normalize, with a prompt in
every window.
"""

import shutil
import tempfile

import numpy as np
import torch
import transformers
from checkpoints import CHECKPOINTS, FAMILIES
from files import GOLDEN, rounded, write_cases, write_json
from make import WINDOW, loaded, tokenizer_of
from sentence_transformers import SentenceTransformer, models
from texts import LONG_TAGGED

STRIDES = (0, WINDOW // 8, 100)
TEXTS = (
    LONG_TAGGED,
    "我爱北京天安门。The cat sat on the mat in Paris. " * 30,
    "The dog walked to the river, and it was a cold day. " * 110,  # read in pieces
    "The cat sat on the mat.",
)
SENTENCE = {"dense": ("", "the river is cold: "), "without-prompt": ("", "the river is cold: ")}


def windows(tokenizer: object, text: str, stride: int) -> list[list[int]]:
    found = tokenizer(text, truncation=True, max_length=WINDOW, stride=stride, return_overflowing_tokens=True)
    return found["input_ids"]


def weights(found: list[list[int]], outside: int, stride: int) -> list[int]:
    """Tokens that each window adds; `outside` of them are special or of a prompt."""
    return [len(ids) - outside - (stride if number else 0) for number, ids in enumerate(found)]


def mean(rows: list[torch.Tensor], counts: list[int]) -> list[float]:
    table = np.array([row.double().numpy() for row in rows])
    return rounded(table[0] if len(rows) == 1 else (table * np.array(counts)[:, None]).sum(axis=0) / sum(counts))


def vectors(model: torch.nn.Module, ids: list[int]) -> dict[str, torch.Tensor]:
    answer = model(input_ids=torch.tensor([ids]))
    found = {"cls": answer.last_hidden_state[0, 0], "mean": answer.last_hidden_state[0].mean(dim=0)}
    pooler = getattr(answer, "pooler_output", None)
    return found if pooler is None else found | {"pooler": pooler[0]}


def probabilities(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([ids])).logits[0]
    kind = model.config.problem_type
    if kind == "regression":
        return logits
    return logits.sigmoid() if kind == "multi_label_classification" else logits.softmax(dim=-1)


def make(family: str) -> None:
    checkpoint, classifier = CHECKPOINTS[family], CHECKPOINTS[f"{family}-labels"]
    tokenizer = tokenizer_of(checkpoint, GOLDEN / family)
    poolers = "pretraining" if "PreTraining" in checkpoint.kind else ""
    encoder = loaded(transformers.AutoModel, GOLDEN / family)
    labels = loaded(classifier.model, GOLDEN / f"{family}-labels")
    cases = []
    for number, text in enumerate(TEXTS):
        for stride in STRIDES:
            found = windows(tokenizer, text, stride)
            counts = weights(found, tokenizer.num_special_tokens_to_add(), stride)
            rows = [vectors(encoder, ids) for ids in found]
            scores = [probabilities(labels, ids) for ids in found]
            case = {"text": number, "stride": stride, "windows": len(found)}
            names = [name for name in rows[0] if name != "pooler" or poolers]
            case |= {name: mean([row[name] for row in rows], counts) for name in names}
            case |= {"label_mean": mean(scores, counts), "label_max": rounded(torch.stack(scores).amax(dim=0))}
            cases.append(case)
    write_cases(GOLDEN / "windows" / f"{family}.json", cases)


def make_sentence() -> None:
    cases = []
    for name, prompts in SENTENCE.items():
        with tempfile.TemporaryDirectory() as place:
            shutil.copytree(GOLDEN / "bert", place, dirs_exist_ok=True)
            shutil.copytree(GOLDEN / "sentence-transformers" / name, place, dirs_exist_ok=True)
            model = SentenceTransformer(place, device="cpu")
        tokenizer = model.tokenizer
        modules = [module for module in model if not isinstance(module, models.Normalize)]
        for number, text in enumerate(TEXTS):
            for prompt in prompts:
                own = tokenizer(prompt, add_special_tokens=False)["input_ids"]
                body = tokenizer(text, add_special_tokens=False)["input_ids"]
                stride, room = WINDOW // 8, WINDOW - 2 - len(own)
                starts = range(0, max(1, len(body) - stride), room - stride)
                parts = [own + body[start : start + room] for start in starts]
                found = [[tokenizer.cls_token_id, *part, tokenizer.sep_token_id] for part in parts]
                rows = [sentence(modules, ids, len(own)) for ids in found]
                vector = mean(rows, weights(found, 2 + len(own), stride))
                cases.append({"name": name, "text": number, "prompt": prompt, "windows": len(found), "vector": vector})
    write_cases(GOLDEN / "windows" / "sentence.json", cases)


def sentence(modules: list[torch.nn.Module], ids: list[int], prompt: int) -> torch.Tensor:
    features = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    features |= {"token_type_ids": torch.zeros(1, len(ids), dtype=torch.long)}
    features |= {"prompt_length": 1 + prompt} if prompt else {}  # with [CLS]
    for module in modules:
        features = module(features)
    return features["sentence_embedding"][0]


if __name__ == "__main__":
    write_json(GOLDEN / "windows" / "texts.json", TEXTS, indent=1)
    for one in FAMILIES:
        make(one)
    make_sentence()
