"""The table of families and tasks, made from the artifacts of the golden checkpoints."""

from collections.abc import Callable

from docs.tools.marks import markdown_table
from packbert.model_export.artifact.manifest import Manifest
from tests.paths import GOLDEN

FAMILIES = {  # model_type -> its name; a new family is a row here, in model_export/families and in tests/golden
    "bert": "BERT base and large, Chinese BERT, SpanBERT, MacBERT (pair: `in_order`)",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-RoBERTa",
    "camembert": "CamemBERT",
    "albert": "ALBERT",
    "distilbert": "DistilBERT",
    "ernie": "ERNIE",
    "electra": "ELECTRA; words for masks from a generator",
    "deberta-v2": "DeBERTa v2 and v3 (NLI, zero-shot, rerankers)",
    "mpnet": "MPNet (all-mpnet, multi-qa-mpnet, paraphrase-mpnet)",
    "modernbert": "ModernBERT (gte-modernbert, modernbert-embed)",
    "nomic_bert": "NomicBERT (nomic-embed-text)",
    "jina_bert": "JinaBERT v2 (jina-embeddings-v2, jina-reranker-v1; `bert` with `alibi` in config.json)",
    "roformer": "RoFormer; tokenizers that split characters, as BERT's",
    "gte": "GTE (gte-multilingual, gte-en-v1.5; as published: `new`)",
}
COLUMNS = (
    "family (`model_type`)",
    "`/embed` pooling",
    "`/fill-mask`",
    "`/nsp`",
    "`/predict`",
    "`/tag`",
    "`/answer`",
    "`/choose`",
    "tokenizer files",
)
TOKENIZERS = {"vocab.txt": "vocab.txt", "vocab.json": "vocab.json + merges.txt"}  # file -> in the table


def families_table(manifest_of: Callable[[str], Manifest]) -> str:
    """Markdown, one row for each family; `manifest_of` gives the manifest of a golden checkpoint's artifact."""
    return markdown_table(COLUMNS, *(_row(family, manifest_of) for family in FAMILIES))


def _row(family: str, manifest_of: Callable[[str], Manifest]) -> tuple[str, ...]:
    pretrained = manifest_of(family)
    tuned = [
        _yes(head, manifest_of(f"{family}-{head}")) if (GOLDEN / f"{family}-{head}").is_dir() else "501"
        for head in ("labels", "tags", "spans", "choices")
    ]
    pooling = ", ".join(head for head in ("cls", "mean", "pooler") if head in pretrained.heads)
    pair = f"`{'`, `'.join(pretrained.pair_labels)}`" if "pair" in pretrained.heads else "501"
    files = ["tokenizer.json", *(shown for name, shown in TOKENIZERS.items() if (GOLDEN / family / name).is_file())]
    found = [_yes("fill_mask", pretrained), pair, *tuned]
    return (
        f"{FAMILIES[family]} (`{family}`)",
        pooling,
        *found,
        ", ".join(files),
    )


def _yes(head: str, manifest: Manifest) -> str:
    return "yes" if head in manifest.heads else "501"
