"""Where the tests find the repository's files."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
SAMPLE = ROOT / "model_export" / "sample"  # the checkpoint of the bundled model
GOLDEN = ROOT / "tests" / "golden"  # checkpoints and their answers, made by transformers
