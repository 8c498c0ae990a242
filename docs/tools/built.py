"""`python -m docs.tools.built SITE`: ends with 1 where a page of the site would contact a host or lead nowhere."""

import json
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
NOT_LOADED = {"canonical", "alternate", "prev", "next", "edit"}  # of <link rel=...>


class Addresses(HTMLParser):
    """The addresses that a page loads, and those that its links lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in given:
            self.linked.append(given["href"])
        elif given.get(LOADED.get(tag, "")) and given.get("rel") not in NOT_LOADED:
            self.loaded.append(given[LOADED[tag]])


def faults(site: Path) -> Iterator[str]:
    for page in sorted(site.rglob("*.html")):
        found = Addresses()
        found.feed(page.read_text("utf-8"))
        name = page.relative_to(site)
        for address in found.loaded:
            if urlsplit(address).netloc:
                yield f"{name} loads {address}"
        for address in found.loaded + found.linked:
            parts = urlsplit(address)
            is_local = not parts.scheme and not parts.netloc and parts.path and page.name != "404.html"
            if is_local and not (page.parent / unquote(parts.path)).exists():
                yield f"{name} leads to {address}, which is not there"


def lacking_search(site: Path) -> Iterator[str]:
    """Each language whose pages the search of opened files would not find."""
    text = (site / "search" / "search_index.js").read_text("utf-8")
    places = [one["location"] for one in json.loads(text[text.index("{") :])["docs"]]
    for language, is_there in (("English", "start.html" in places), ("Chinese", "zh/start.html" in places)):
        if not is_there:
            yield f"the search index lacks the pages in {language}"


if __name__ == "__main__":
    found = [*faults(Path(sys.argv[1])), *lacking_search(Path(sys.argv[1]))]
    print("\n".join(found) or "the site loads nothing from other hosts, and its links lead to files of it")
    sys.exit(bool(found))
