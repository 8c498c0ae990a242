"""`python -m docs.tools`: writes the parts of all pages that come from code, from results and from answers.

With names of parts it writes only those; `answers` and `pictures` are two of them.
"""

import sys
import tempfile
from functools import cache
from pathlib import Path

from docs.tools import answers, pictures, settings
from docs.tools.families import families_table
from docs.tools.marks import fill, pages
from docs.tools.parts import parts_of
from docs.tools.services import Services
from packbert.model_export.export import export
from tests.paths import GOLDEN


def main(wanted: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, Services(Path(folder)) as services:

        @cache
        def document() -> dict[str, object]:
            content: dict[str, object] = services.client(answers.BUNDLED).get("/openapi.json").json()
            return content

        def families() -> str:
            return families_table(lambda name: export(GOLDEN / name, Path(folder) / f"family-{name}"))

        parts = parts_of(document, families)
        chosen = {name: part for name, part in parts.items() if not wanted or name in wanted}
        for page in pages():
            page.write_text(fill(page.read_text("utf-8"), chosen), "utf-8")
        if not wanted or "answers" in wanted:
            for page in pages():
                answers.rewrite(page, services.client)
        if not wanted or "pictures" in wanted:
            pictures.write(services.client(answers.BUNDLED))
        if not wanted or "settings" in wanted:
            settings.write_files()


if __name__ == "__main__":
    main(sys.argv[1:])
