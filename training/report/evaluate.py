"""Measures a checkpoint folder. Reads the published fp16 file; knows nothing of training."""

from pathlib import Path

from tokenizers import Tokenizer

from training.data.corpus import Source
from training.data.tatoeba import Pair
from training.model.checkpoint_files import read_checkpoint
from training.model.model import Bert
from training.report import prompts
from training.report.figures import LANGUAGES, Figures, Filled, FilledEveryday, JudgedPair
from training.report.measure import fill, measure_held_out, probability_of_next
from training.report.similarity import measure_retrieval, measure_similarity

TOP = 5
TATOEBA_ROUNDS = 6  # one round for as many of the others: the held-out sentences are few


def evaluate(
    folder: Path, *, sources: list[Source], similarity_table: Path | None, pairs: list[Pair], rounds: int
) -> Figures:
    """sources: the held-out part; similarity_table: STS-B; pairs: translations held out; rounds: how many."""
    model = read_checkpoint(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    articles = [source for source in sources if not source.lone_sentences]
    similarity = measure_similarity(model, tokenizer, table=similarity_table) if similarity_table else None
    return Figures(
        held_out={
            language: measure_held_out(model, sources=[s for s in articles if s.language == language], rounds=rounds)
            for language in LANGUAGES
        },
        similarity=similarity.test if similarity else {},
        similarity_dev=similarity.dev if similarity else {},
        unrelated=similarity.unrelated if similarity else {},
        retrieval=measure_retrieval(model, tokenizer, pairs=pairs),
        tatoeba={
            source.language: measure_held_out(model, sources=[source], rounds=max(1, rounds // TATOEBA_ROUNDS))
            for source in sources
            if source.lone_sentences
        },
        everyday=fill_everyday(model, tokenizer),
        english=fill_all(model, tokenizer, prompts.ENGLISH),
        chinese=fill_all(model, tokenizer, prompts.CHINESE),
        extra=fill_all(model, tokenizer, prompts.EXTRA),
        pairs=[
            JudgedPair(first=a, second=b, is_next=probability_of_next(model, tokenizer, a, b)) for a, b in prompts.PAIRS
        ],
    )


def fill_all(model: Bert, tokenizer: Tokenizer, texts: tuple[str, ...]) -> list[Filled]:
    return [Filled(text=text, guesses=fill(model, tokenizer, text, count=TOP)) for text in texts]


def fill_everyday(model: Bert, tokenizer: Tokenizer) -> dict[str, list[FilledEveryday]]:
    return {
        language: [
            FilledEveryday(text=one.text, accepted=one.accepted, guesses=fill(model, tokenizer, one.text, count=TOP))
            for one in sentences
        ]
        for language, sentences in prompts.everyday_sentences().items()
    }
