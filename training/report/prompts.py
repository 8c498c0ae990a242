"""The sentences whose answers the model card shows, and the fixed list of everyday sentences."""

import json
from dataclasses import dataclass
from pathlib import Path

ENGLISH = (
    "The sun rises in the [MASK].",
    "She drinks a cup of [MASK] every morning.",
    "He went to the [MASK] to buy some bread.",
    "The children are playing in the [MASK].",
    "My brother is two years [MASK] than me.",
    "I would like to [MASK] a book.",
    "The train [MASK] at seven o'clock.",
    "It is very [MASK] in winter.",
    "The doctor works in a [MASK].",
    "We live in a small [MASK] near the sea.",
)
CHINESE = (
    "太阳从[MASK]边升起。",
    "他在北京大[MASK]读书。",
    "今天的天[MASK]很好。",
    "我想喝一杯[MASK]。",
    "她是一名小学老[MASK]。",
    "中国的首都是北[MASK]。",
    "我们一起去公[MASK]玩。",
    "这本书很有[MASK]思。",
    "冬天很[MASK]。",
    "我的妈妈在医[MASK]工作。",
)
EXTRA = (
    "penguins [MASK] are flightless birds",
    "I love [MASK] food.",
    "my dog is [MASK]",
    "paris is the capital of [MASK].",
    "我今天很[MASK]心",
)
PAIRS = (
    ("我喜欢机器学习。", "因为它很有趣。"),
    ("我喜欢机器学习。", "今天天气真好。"),
    ("The cat sat on the mat.", "Then it fell asleep in the sun."),
    ("The cat sat on the mat.", "The stock market fell by two percent."),
)
EVERYDAY = Path(__file__).with_name("everyday.json")  # forty a language, written before the training


@dataclass(frozen=True, slots=True, kw_only=True)
class EverydaySentence:
    text: str  # has one [MASK]
    accepted: list[str]  # words; at least one is a token of the bundled vocabulary


def everyday_sentences() -> dict[str, list[EverydaySentence]]:
    """By language."""
    lists = json.loads(EVERYDAY.read_text(encoding="utf-8"))
    return {language: [EverydaySentence(**sentence) for sentence in found] for language, found in lists.items()}


def masked_texts() -> list[str]:
    """Every text with a [MASK] that is evaluated or shown."""
    everyday = [sentence.text for found in everyday_sentences().values() for sentence in found]
    return [*everyday, *ENGLISH, *CHINESE, *EXTRA]
