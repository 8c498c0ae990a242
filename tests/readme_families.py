"""The table of families and tasks in README.md, made from the artifacts of the golden checkpoints.

python -m tests.readme_families          writes it into README.md; a test compares it
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from packbert.model_export.artifact.manifest import Manifest
from packbert.model_export.export import export
from tests.paths import GOLDEN, ROOT
from tests.readme_marks import replace_between

BEGIN, END = (
    "<!-- families: written by `python -m tests.readme_families`, compared by a test -->\n",
    "<!-- /families -->",
)
FAMILIES = {
    "bert": "BERT base and large, Chinese BERT, SpanBERT, MacBERT (pair: `in_order`)",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-RoBERTa",
    "camembert": "CamemBERT",
    "albert": "ALBERT",
    "distilbert": "DistilBERT",
    "ernie": "ERNIE",
    "electra": "ELECTRA; words for masks from a generator",
    "deberta-v2": "DeBERTa v2 and v3, mDeBERTa",
}
PROOF = """
The tests prove every cell with a checkpoint that `transformers` wrote and answers that `transformers` gave.
A checkpoint has the routes of the heads stored in it; the other routes answer 501 with the reason.
`packbert describe CHECKPOINT` lists them.

"""
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


def table(manifest_of: Callable[[str], Manifest]) -> str:
    """Markdown; `manifest_of` gives the manifest of a golden checkpoint's artifact."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(_row(family, manifest_of) for family in FAMILIES)]
    return PROOF + "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + "\n"


def _row(family: str, manifest_of: Callable[[str], Manifest]) -> tuple[str, ...]:
    pretrained = manifest_of(family)
    tuned = {head: manifest_of(f"{family}-{head}") for head in ("labels", "tags", "spans", "choices")}
    pooling = ", ".join(head for head in ("cls", "mean", "pooler") if head in pretrained.heads)
    pair = f"`{'`, `'.join(pretrained.pair_labels)}`" if "pair" in pretrained.heads else "501"
    files = ["tokenizer.json", *(shown for name, shown in TOKENIZERS.items() if (GOLDEN / family / name).is_file())]
    found = [_yes("fill_mask", pretrained), pair, *(_yes(head, manifest) for head, manifest in tuned.items())]
    return (
        f"{FAMILIES[family]} (`{family}`)",
        pooling,
        *found,
        ", ".join(files),
    )


def _yes(head: str, manifest: Manifest) -> str:
    return "yes" if head in manifest.heads else "501"


def written(readme: str, content: str) -> str:
    """The README with `content` between the marks."""
    return replace_between(readme, BEGIN, END, content)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        made = table(lambda name: export(GOLDEN / name, Path(root) / name))
    (ROOT / "README.md").write_text(written((ROOT / "README.md").read_text("utf-8"), made), "utf-8")
