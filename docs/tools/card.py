"""The measured parts of the bundled model's card in Chinese, made from its config and figures."""

import json
from collections.abc import Iterable
from typing import Any

from docs.tools.marks import markdown_table
from tests.paths import SAMPLE

LANGUAGES = ("en", "zh")
FIRST, IN_FIVE, NO = "首位", "前五", "无"  # where the first accepted word stands


def shape() -> str:
    """Markdown: the sizes of the model."""
    config = _read("config.json")
    return markdown_table(
        ("大小", "值"),
        ("层数 × 隐藏维度", f"{config['num_hidden_layers']} × {config['hidden_size']}"),
        ("注意力头、前馈维度", f"{config['num_attention_heads']}、{config['intermediate_size']:,}"),
        ("词表", f"{config['vocab_size']:,} 个 WordPiece"),
        ("位置", str(config["max_position_embeddings"])),
    )


def figures() -> str:
    """Markdown: shares of right answers, and the similarity of vectors."""
    found = _read("figures.json")
    held, everyday = found["held_out"], found["everyday"]
    verdicts = {language: [_verdict(one) for one in everyday[language]] for language in LANGUAGES}
    rows: list[tuple[str, ...]] = [("测量", "英文", "中文")]
    for title, name in (
        ("留出文章：掩码处词元正确（80 / 10 / 10）", "bert_rule"),
        ("留出文章：掩码处词元正确（全部为 `[MASK]`）", "all_masked"),
        ("下一句预测正确（一半随机）", "next_sentence"),
        ("下一句预测正确，64 个词元以上的句对", "next_sentence_long"),
    ):
        rows.append((title, *(f"{held[language][name]:.1%}" for language in LANGUAGES)))
    for title, places in (
        ("日常句子：第一个候选词正确", {FIRST}),
        ("日常句子：前五个候选词之一正确", {FIRST, IN_FIVE}),
    ):
        counts = [sum(one in places for one in verdicts[language]) for language in LANGUAGES]
        rows.append((title, *(f"{n} / {len(everyday[lang])}" for n, lang in zip(counts, LANGUAGES, strict=True))))
    similar = [("语义相似度（STS-B 测试集，Spearman），池化", "值")]
    similar += [(pooling, f"{value:.3f}") for pooling, value in found["similarity"].items()]
    return markdown_table(*rows) + "\n" + markdown_table(*similar)


def everyday(language: str) -> str:
    """Markdown: every sentence with its five likeliest words; the failures first."""
    answers = _read("figures.json")["everyday"][language]
    ordered: Iterable[Any] = sorted(answers, key=lambda one: (NO, IN_FIVE, FIRST).index(_verdict(one)))
    rows = [(one["text"], _verdict(one), "、".join(word for word, _ in one["guesses"])) for one in ordered]
    return markdown_table(("文本", "正确的词", "前五个候选词"), *rows)


def _verdict(answer: Any) -> str:
    words = [word for word, _ in answer["guesses"]]
    if words[0] in answer["accepted"]:
        return FIRST
    return IN_FIVE if set(words) & set(answer["accepted"]) else NO


def _read(name: str) -> Any:
    return json.loads((SAMPLE / name).read_text("utf-8"))
