"""The table of alerts, made from deploy/prometheus/rules.yml."""

from docs.tools.marks import markdown_table
from tests.deploy.queries import alerts


def alerts_table() -> str:
    """Markdown, one row for each alert."""
    rows = [
        (
            f"[`{rule['alert']}`](#{rule['alert'].lower()})",
            rule["labels"]["severity"],
            rule.get("for", "at once"),
            rule["annotations"]["summary"],
        )
        for rule in alerts()
    ]
    return markdown_table(("alert", "severity", "after", "meaning"), *rows)
