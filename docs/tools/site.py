"""A hook of MkDocs: a link to a file of the repository outside docs/ becomes that file's path, which a site lacks."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)#]*)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Pages link to files beside docs/ for readers of the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def one(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        inside = target == "docs" or target.startswith("docs/")
        return link[0] if inside else f"{link[1]} (`{target}`)"

    return LINK.sub(one, markdown)
