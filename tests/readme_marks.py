"""The parts of a document that a command writes: the text between two marks."""


def replace_between(document: str, begin: str, end: str, content: str) -> str:
    """The document with `content` between its marks; ValueError if one of them is missing."""
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the document lacks {begin if not found else end!r}")
    return f"{before}{begin}{content}{end}{after}"
