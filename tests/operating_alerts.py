"""The table of alerts in OPERATING.md, made from deploy/prometheus/rules.yml.

python -m tests.operating_alerts         writes it; a test compares
"""

from tests.deploy.queries import alerts
from tests.paths import ROOT
from tests.readme_marks import replace_between

OPERATING = ROOT / "OPERATING.md"
MARKS = ("<!-- alerts: written by `python -m tests.operating_alerts`, compared by a test -->\n", "<!-- /alerts -->")


def table() -> str:
    """Markdown, one row for each alert."""
    rows = [("alert", "severity", "after", "meaning"), ("---",) * 4]
    for rule in alerts():
        severity, meaning = rule["labels"]["severity"], rule["annotations"]["summary"]
        rows.append((f"`{rule['alert']}`", severity, rule.get("for", "at once"), meaning))
    return "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in rows) + "\n"


def rewrite(text: str) -> str:
    return replace_between(text, *MARKS, table())


if __name__ == "__main__":
    OPERATING.write_text(rewrite(OPERATING.read_text("utf-8")), "utf-8")
