"""Makes the golden answers of transformers' zero-shot classification pipeline.

    python tests/golden/makers/make_zero_shot.py

It needs torch and transformers; the tests need neither. The checkpoints are the golden classifiers with the labels of
an entailment classifier: `zero-shot/FAMILY/config.json` is the only file that differs. `answers.json` holds the
arguments of the pipeline and its answers, without `sequence`: it cuts a text that is too long, never the label.
"""

import torch
import transformers
from checkpoints import CHECKPOINTS, named
from files import GOLDEN, read_json, rounded, write_cases, write_json
from make import WINDOW, tokenizer_of

FIRST, LAST = ("ENTAILMENT", "neutral", "contradiction"), ("contradiction", "neutral", "entailment")
FAMILIES = {  # the labels' order decides which of them is contradiction
    "bert": LAST,
    "roberta": FIRST,
    "xlm-roberta": ("neutral", "Entails", "contradiction"),
    "camembert": LAST,
    "albert": FIRST,
    "ernie": LAST,
    "electra": LAST,
    "deberta-v2": FIRST,
}
TEXTS = (
    "The cat sat on the mat.",
    "我爱北京天安门。",
    "Unaffable RUNNING, walked to London? We like tea by the river.",
    "a",
    "The cat sat on the mat in Paris, and it was warm. " * 12,
    "dog " * 137,
)
CANDIDATES = (["cat", "dog", "big river in the sun"], ["tea"], "London, milk , the warm house,北京")
TEMPLATES = (None, "It is about {}!", "{}", "我爱{}。", "{{{0}}} is {0}")


def make(family: str) -> None:
    source, folder = GOLDEN / f"{family}-labels", GOLDEN / "zero-shot" / family
    write_json(folder / "config.json", read_json(source / "config.json") | named(*FAMILIES[family]), indent=2)
    checkpoint = CHECKPOINTS[f"{family}-labels"]
    stated = transformers.AutoConfig.from_pretrained(folder)
    model = checkpoint.model.from_pretrained(source, config=stated, dtype=torch.float32).eval()
    tokenizer = tokenizer_of(checkpoint, source)
    tokenizer.model_max_length = WINDOW
    pipeline = transformers.pipeline("zero-shot-classification", model=model, tokenizer=tokenizer)
    write_cases(folder / "answers.json", cases(pipeline))


def cases(pipeline: transformers.Pipeline) -> list[dict[str, object]]:
    found = []
    for number, text in enumerate(TEXTS):
        for candidates in CANDIDATES:
            for multi_label in (False, True):
                template = TEMPLATES[len(found) % len(TEMPLATES)]
                asked = {"candidate_labels": candidates, "multi_label": multi_label}
                asked |= {} if template is None else {"hypothesis_template": template}
                answer = pipeline(text, **asked)
                scores = rounded(answer["scores"])
                found.append({"text": number, "parameters": asked, "labels": answer["labels"], "scores": scores})
    return found


if __name__ == "__main__":
    write_json(GOLDEN / "zero-shot" / "texts.json", TEXTS, indent=1)
    for name in FAMILIES:
        make(name)
