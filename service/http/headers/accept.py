"""Which of the offered media types, content codings or languages a client prefers (RFC 9110, section 12.5)."""

from collections.abc import Sequence


def choose_media_type(accept: str, offered: Sequence[str]) -> str:
    """The offered type with the highest weight, of several the one that the client names first.

    The first of `offered` where none is acceptable.
    """
    stated = _parse(accept)

    def weight(media_type: str) -> float:
        ranges = (media_type, media_type.split("/")[0] + "/*", "*/*")
        return next((stated[one] for one in ranges if one in stated), 0.0)

    named = [
        one for one in stated if one in offered and stated[one]
    ]  # `application/x-npy, */*` means the type it names
    return max(named or offered, key=weight)


def accepts_coding(accept_encoding: str, coding: str) -> bool:
    """Whether a response may have this content coding; not where the header is empty."""
    stated = _parse(accept_encoding)
    return stated.get(coding, stated.get("*", 0.0)) > 0


def choose_language(accept_language: str, offered: Sequence[str]) -> str:
    """The offered language with the highest weight, of several the one that the client names first.

    `zh-Hant-TW` asks for `zh` too; the first of `offered` where none is acceptable.
    """
    weights: dict[str, float] = {}
    for tag, weight in _parse(accept_language).items():
        language = tag.split("-")[0]
        weights[language] = max(weight, weights.get(language, 0.0))
    named = [one for one in weights if one in offered and weights[one]]
    return max(named or offered, key=lambda one: weights.get(one, weights.get("*", 0.0)))


def _parse(header: str) -> dict[str, float]:
    """The weight of each member, by its name in lower case; a weight that is no number counts as 0."""
    weights = {}
    for member in header.split(","):
        name, *parameters = (part.strip().lower() for part in member.split(";"))
        stated = [one.partition("=")[2].strip() for one in parameters if one.partition("=")[0].strip() == "q"]
        if name:
            weights[name] = _number(stated[0]) if stated else 1.0
    return weights


def _number(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0
