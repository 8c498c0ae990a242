"""Makes the golden checkpoints: tiny, with random weights, each with the answers of transformers.

    python tests/golden/makers/make.py [FOLDER ...]

It needs torch, transformers, sentencepiece and protobuf; the tests need none of them. The checkpoints NAME-spans need
transformers 4: version 5 has no question-answering pipeline.

No value is zero, one or a default, so that a test fails if one is ignored: all biases and norms are random, the epsilon
is unusual. `expected.npz` holds, for sequence i: `i.ids`, `i.types` [length], `i.hidden` [length, hidden], and for each
head of the checkpoint `i.pooler` [hidden], `i.masks` [n] with `i.vocabulary` [n, vocabulary] (logits), `i.pair` [2],
`i.labels` [labels], `i.tags` [length, tags], `i.spans` [length, 2], `i.choices` [1]. `answers.json` holds the results
of the tokenizer and the pipelines.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from checkpoints import CHECKPOINTS, Checkpoint
from files import GOLDEN, emptied, report
from texts import ASKED, CHOICES, LABELLED, LONG_TAGGED, MASKED, PAIRS, TAGGED, TEXTS

LENGTHS = (2, 5, 17, 33, 130)
WINDOW = 144  # tokens that every golden checkpoint takes
STRIDED = [
    {"aggregation_strategy": "simple", "stride": 0},
    {"aggregation_strategy": "simple", "stride": 30, "ignore_labels": []},
    {"aggregation_strategy": "first", "stride": 7},
    {"aggregation_strategy": "average", "stride": 40},
    {"aggregation_strategy": "max", "stride": 141, "ignore_labels": ["I-LOC"]},
]
OUTPUTS = {"prediction_logits": "vocabulary", "seq_relationship_logits": "pair", "sop_logits": "pair"}


def make(name: str, checkpoint: Checkpoint) -> None:
    folder = emptied(GOLDEN / name)
    model = randomized(checkpoint, folder)
    model.to(checkpoint.dtype).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokenizer = tokenizer_of(checkpoint, folder)
    np.savez_compressed(folder / "expected.npz", **expected(loaded(checkpoint.model, folder).double(), checkpoint))
    answers = {
        task: TASKS[task](loaded(getattr(transformers, kind), folder), tokenizer)
        for task, kind in checkpoint.tasks.items()
    }
    content = {"tokens": tokens(tokenizer)} | answers
    (folder / "answers.json").write_text(lines(content), "utf-8")
    report(folder)


def tokenizer_of(checkpoint: Checkpoint, folder: Path) -> object:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if checkpoint.segments > 1:  # transformers 5 omits ALBERT's segments, which it was trained with
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer


def loaded(kind: type[torch.nn.Module], folder: Path) -> torch.nn.Module:
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def randomized(checkpoint: Checkpoint, folder: Path) -> torch.nn.Module:
    """The model with random parameters; writes its tokenizer, whose size is the number of word embeddings."""
    (folder / "config.json").write_text(json.dumps({"model_type": checkpoint.model.config_class.model_type}), "utf-8")
    ids = checkpoint.write_tokenizer(folder)
    torch.manual_seed(20181011)
    model = checkpoint.model(checkpoint.model.config_class(**checkpoint.config, vocab_size=ids))
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # a table of sines
            continue
        norm = re.search(r"norm(_\w)?\.weight$", name.lower()) is not None
        parameter.normal_(1.0 if norm else 0.0, 0.3 if norm else spread(name, parameter.dim()))
    return model


def spread(name: str, dimensions: int) -> float:
    """The standard deviation of a parameter that is no norm's weight."""
    if dimensions == 1:
        return 0.1
    return 0.6 if any(part in name for part in ("embeddings", "classifier", "qa_outputs")) else 0.15


def expected(model: torch.nn.Module, checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """One sequence at a time, in float64, rounded to float32."""
    random = np.random.default_rng(5)
    config, result = model.config, {}
    for i, length in enumerate(LENGTHS):
        ids = random.integers(10, config.vocab_size, length, dtype=np.int32)
        types = (np.arange(length) >= length // 2).astype(np.int32) * (checkpoint.segments > 1)
        masks = np.unique(random.integers(0, length, 2)).astype(np.int32)
        feeds = feeds_of(ids, types, checkpoint)
        asked = {name: feed[None] for name, feed in feeds.items()} if checkpoint.logits == "choices" else feeds
        answer = model(**asked, output_hidden_states=True)
        encoded = model.base_model(**feeds)
        found = {"ids": ids, "types": types}
        if checkpoint.logits not in ("labels", "tags", "spans", "choices"):
            found["hidden"] = answer.hidden_states[-1][0]
            if getattr(encoded, "pooler_output", None) is not None:
                found["pooler"] = encoded.pooler_output[0]
        found |= heads(answer, checkpoint.logits, masks)
        result |= {
            f"{i}.{key}": np.asarray(value, value.dtype if key in ("ids", "types", "masks") else np.float32)
            for key, value in found.items()
        }
    return result


def feeds_of(ids: np.ndarray, types: np.ndarray, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Each [1, length]."""
    arrays = {"input_ids": ids} | ({"token_type_ids": types} if checkpoint.segments else {})
    return {name: torch.tensor(array[None].astype(np.int64)) for name, array in arrays.items()}


def heads(answer: object, logits: str, masks: np.ndarray) -> dict[str, object]:
    if logits == "spans":
        return {"spans": torch.stack([answer["start_logits"][0], answer["end_logits"][0]], dim=-1)}
    named = {OUTPUTS.get(key, logits): value[0] for key, value in answer.items() if key.endswith("logits")}
    if "vocabulary" in named:
        named |= {"masks": masks, "vocabulary": named["vocabulary"][masks]}
    return named


def tokens(tokenizer: object) -> list[dict[str, object]]:
    pairs = [(text, None) for text in TEXTS] + [tuple(pair) for pair in PAIRS]
    encoded = [(text, pair, tokenizer(text, pair, return_token_type_ids=True)) for text, pair in pairs]
    return [
        {"text": text, "text_pair": pair, "ids": found["input_ids"], "types": found["token_type_ids"]}
        for text, pair, found in encoded
    ]


def fill_mask(model: torch.nn.Module, tokenizer: object) -> list[dict[str, object]]:
    pipeline = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer)
    cases = []
    for inputs, parameters in MASKED:
        masked = inputs.format(mask=tokenizer.mask_token)
        cases.append({"inputs": masked, "parameters": parameters, "answer": pipeline(masked, **parameters)})
    return cases


def pairs(model: torch.nn.Module, tokenizer: object) -> list[dict[str, object]]:
    cases = []
    for text, pair in PAIRS:
        answer = model(**tokenizer(text, pair, return_tensors="pt"))
        logits = answer["sop_logits"] if "sop_logits" in answer else answer["logits"]
        found = {"logits": logits[0].tolist(), "probabilities": logits.softmax(-1)[0].tolist()}
        cases.append({"text": text, "text_pair": pair} | found)
    return cases


def predict(model: torch.nn.Module, tokenizer: object) -> list[dict[str, object]]:
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    cases = []
    for text, pair in LABELLED:
        inputs = {"text": text} | ({"text_pair": pair} if pair is not None else {})
        answers = {"answer": pipeline(dict(inputs)), "raw": pipeline(dict(inputs), function_to_apply="none")}
        cases.append({"inputs": text if pair is None else [text, pair]} | answers)
    return cases


def tag(model: torch.nn.Module, tokenizer: object) -> list[dict[str, object]]:
    pipeline = transformers.pipeline("token-classification", model=model, tokenizer=tokenizer)
    every = [{"aggregation_strategy": strategy} for strategy in ("none", "simple", "first", "average", "max")]
    every += [{"aggregation_strategy": strategy, "ignore_labels": []} for strategy in ("none", "max")]
    every += [{"aggregation_strategy": "simple", "ignore_labels": ["PER", "O"]}]
    cases = [{"inputs": text, "parameters": parameters} for text in TAGGED for parameters in every]
    cases += [{"inputs": LONG_TAGGED, "parameters": parameters} for parameters in STRIDED]
    tokenizer.model_max_length = WINDOW
    return [case | {"answer": pipeline(case["inputs"], **case["parameters"])} for case in cases]


def answer(model: torch.nn.Module, tokenizer: object) -> list[dict[str, object]]:
    tokenizer.model_max_length = WINDOW
    pipeline = transformers.pipeline("question-answering", model=model, tokenizer=tokenizer)
    cases = [{"question": question, "context": context, "parameters": more} for question, context, more in ASKED]
    return [
        case | {"answer": pipeline(question=case["question"], context=case["context"], **case["parameters"])}
        for case in cases
    ]


def choose(model: torch.nn.Module, tokenizer: object) -> list[dict[str, object]]:
    cases = []
    for prompt, choices in CHOICES:
        encoded = tokenizer([prompt] * len(choices), list(choices), return_tensors="pt", padding=True)
        logits = model(**{key: value[None] for key, value in encoded.items()}).logits[0]
        scores = logits.softmax(-1).tolist()
        cases.append({"prompt": prompt, "choices": choices, "logits": logits.tolist(), "scores": scores})
    return cases


def lines(content: dict[str, list[object]]) -> str:
    """JSON with one case per line."""
    cases = {
        key: ",\n  ".join(json.dumps(case, ensure_ascii=False, default=float) for case in found)
        for key, found in content.items()
    }
    return "{\n" + ",\n".join(f' "{key}": [\n  {found}\n ]' for key, found in cases.items()) + "\n}\n"


TASKS = {
    "fill_mask": fill_mask,
    "pairs": pairs,
    "predict": predict,
    "tag": tag,
    "answer": answer,
    "choose": choose,
}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or CHECKPOINTS:
        make(wanted, CHECKPOINTS[wanted])
