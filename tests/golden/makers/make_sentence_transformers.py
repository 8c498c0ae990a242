"""Makes the golden sentence-transformers checkpoints: the golden BERT with modules, and what `encode` answers.

    python tests/golden/makers/make_sentence_transformers.py [NAME ...]

It needs torch and sentence-transformers 6.2.0; the tests need neither. Only the files around the golden BERT are
stored, in `sentence-transformers/NAME`: the tests copy them over `bert/`. `answers.json` holds the texts with their
arguments for `encode`, and the vectors.
"""

import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from files import GOLDEN, read_json, report, rounded, write_json
from sentence_transformers import SentenceTransformer, models

FOLDER = GOLDEN / "sentence-transformers"
OF_BERT = ("model.safetensors", "config.json", "README.md")  # the same in every checkpoint
SHORT = ("a", "The cat sat on the mat.", "hello world, we like tea", "Unaffable RUNNING, walked?", "我爱北京天安门。")
LONG = (
    "The cat sat on the mat and the dog walked to the river. " * 40,
    "We walked home in the rain, and it was a cold day. " * 15,
    "我爱北京天安门。" * 50,
)
PROMPTS = {"query": "the river is cold: ", "document": "", "passage": "our house is small, "}
WIDTH = 32
PROMPTED = ({}, {"prompt_name": "passage"}, {"prompt_name": "document"}, {"prompt": "you said: "}, {"prompt": ""})
ACTIVATIONS = {
    "tanh": torch.nn.Tanh,
    "gelu": torch.nn.GELU,
    "sigmoid": torch.nn.Sigmoid,
    "no bias": torch.nn.Identity,
    "residual": torch.nn.Tanh,
    "square residual": torch.nn.GELU,
}
HALVING = ("tanh", "gelu", "sigmoid", "no bias", "residual")
OLD = "0_Transformer"


@dataclass(frozen=True, kw_only=True)
class Case:
    modes: str | tuple[str, ...]
    include_prompt: bool = True
    after: tuple[str, ...] = ()
    max_seq_length: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    calls: tuple[dict[str, str], ...] = ({},)  # the other arguments of encode
    truncate_dim: int | None = None
    similarity: str | None = None
    old_layout: bool = False  # the transformer in 0_Transformer


CASES = {
    "cls": Case(modes="cls"),
    "mean": Case(modes="mean", after=("normalize",)),
    "max": Case(modes="max"),
    "mean-sqrt-length": Case(modes="mean_sqrt_len_tokens"),
    "weighted-mean": Case(modes="weightedmean"),
    "last-token": Case(modes="lasttoken"),
    "all-modes": Case(modes=("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")),
    "dense": Case(modes="mean", after=("tanh", "normalize")),
    "deep": Case(modes=("max", "mean"), after=("gelu", "norm", "normalize", "sigmoid", "no bias")),
    "prompts": Case(modes="mean", prompts=PROMPTS, default_prompt="query", calls=PROMPTED, after=("normalize",)),
    "without-prompt": Case(
        modes=("cls", "mean", "max", "weightedmean", "mean_sqrt_len_tokens", "lasttoken"),
        include_prompt=False,
        prompts=PROMPTS,
        default_prompt="query",
        calls=PROMPTED,
    ),
    "residual": Case(modes="mean", after=("residual", "square residual", "normalize")),
    "old-layout": Case(modes="mean", after=("tanh",), max_seq_length=32, old_layout=True),
    "short": Case(modes="mean", max_seq_length=16),
    "short-without-prompt": Case(
        modes="weightedmean", include_prompt=False, max_seq_length=16, prompts=PROMPTS, calls=PROMPTED
    ),
    "truncated": Case(modes="mean", after=("normalize",), truncate_dim=12, similarity="dot"),
    "euclidean": Case(modes="cls", truncate_dim=20, similarity="euclidean"),
    "manhattan": Case(modes="mean", similarity="manhattan"),
}


def make(name: str, case: Case) -> None:
    torch.manual_seed(7)
    transformer = models.Transformer(str(GOLDEN / "bert"), max_seq_length=case.max_seq_length)
    pooling = models.Pooling(WIDTH, pooling_mode=case.modes, include_prompt=case.include_prompt)
    modules, width = [transformer, pooling], pooling.get_embedding_dimension()
    for kind in case.after:
        modules.append(module(kind, width))
        width = width // 2 if kind in HALVING else width
    model = SentenceTransformer(
        modules=modules, prompts=case.prompts, default_prompt_name=case.default_prompt, device="cpu"
    )
    model.truncate_dim, model.similarity_fn_name = case.truncate_dim, case.similarity
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        if case.max_seq_length:  # where old versions state it; the tokenizer's own limit is larger there
            state(Path(saved), case.max_seq_length)
        if case.old_layout:
            move(Path(saved))
        model = SentenceTransformer(saved, device="cpu")
        shutil.copytree(saved, folder, ignore=shutil.ignore_patterns("README.md"))
    for file in OF_BERT:
        for place in (folder, folder / OLD):
            (place / file).unlink(missing_ok=True)
    texts = [*SHORT, *LONG]
    answers = [{"arguments": call, "vectors": rounded(model.encode(texts, **call))} for call in case.calls]
    content = {"texts": texts, "similarity": model.similarity_fn_name, "calls": answers}
    if case.similarity is not None:  # of the first text to the others
        vectors = model.encode(texts)
        content["similarities"] = rounded(model.similarity(vectors[:1], vectors[1:]).numpy())[0]
    write_json(folder / "answers.json", content)
    report(folder)


def module(kind: str, width: int) -> torch.nn.Module:
    if kind == "normalize":
        return models.Normalize()
    if kind == "norm":
        norm = models.LayerNorm(width)
        randomize(norm, 1.0)
        return norm
    dense = models.Dense(
        width,
        width // 2 if kind in HALVING else width,
        bias=kind != "no bias",
        activation_function=ACTIVATIONS[kind](),
        use_residual="residual" in kind,
    )
    randomize(dense, 0.0)
    return dense


def randomize(module: torch.nn.Module, mean: float) -> None:
    for parameter in module.parameters():
        parameter.normal_(mean, 0.3)


def move(folder: Path) -> None:
    """The transformer's files to the folder where versions before 2 saved them."""
    (folder / OLD).mkdir()
    for file in [*folder.iterdir()]:
        if file.is_file() and file.name not in ("modules.json", "config_sentence_transformers.json", "README.md"):
            file.rename(folder / OLD / file.name)
    modules = read_json(folder / "modules.json")
    modules[0]["path"] = OLD
    write_json(folder / "modules.json", modules, indent=1)


def state(folder: Path, limit: int) -> None:
    """Moves the limit from tokenizer_config.json to sentence_bert_config.json, as in checkpoints of old versions."""
    for name, key, value in (
        ("sentence_bert_config.json", "max_seq_length", limit),
        ("tokenizer_config.json", "model_max_length", 512),
    ):
        write_json(folder / name, read_json(folder / name) | {key: value}, indent=1)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or CASES:
        make(wanted, CASES[wanted])
