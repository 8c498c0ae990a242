"""`python -m model_export [describe] CHECKPOINT [ARTIFACT] [options]`: arguments in, one export or description, a report out."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from model_export.artifact.manifest import Manifest
from model_export.checkpoints.checkpoint import Checkpoint
from model_export.checkpoints.hub import download, is_hub_id
from model_export.checkpoints.pooling import USUAL
from model_export.describe import Description, describe_checkpoint
from model_export.errors import ExportError
from model_export.export import export
from model_export.graph.precision import PRECISIONS
from model_export.output.atomic_folder import check_empty

CHECKPOINT = "a folder with config.json, weights and tokenizer files, or a hub id like google-bert/bert-base-uncased"


def main(words: Sequence[str]) -> int:
    describes = list(words[:1]) == ["describe"]
    arguments = _parser(describes).parse_args(words[describes:])
    try:
        print(_described(arguments) if describes else _exported(arguments))
    except (ExportError, OSError) as error:  # the system's own words where a file of the checkpoint may not be read
        print(f"model_export: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("model_export: interrupted, nothing was written", file=sys.stderr)
        return 130
    return 0


def _parser(describes: bool) -> argparse.ArgumentParser:
    if describes:
        about = "Says what a checkpoint is, without exporting it."
        parser = argparse.ArgumentParser(prog="python -m model_export describe", description=about)
    else:
        about = "Converts a trained BERT to an ONNX artifact for `python -m service`; `describe CHECKPOINT` says what a checkpoint is."
        parser = argparse.ArgumentParser(prog="python -m model_export", description=about)
    parser.add_argument("checkpoint", help=CHECKPOINT)
    parser.add_argument("--revision", help="a branch, tag or commit of the hub's repository")
    if not describes:
        parser.add_argument("artifact", type=Path, help="the folder to write; must not exist or be empty")
        parser.add_argument(
            "--precision",
            choices=sorted(PRECISIONS),
            default="fp32",
            help="fp16 for cuda, int8 for the cpu (default: fp32)",
        )
        parser.add_argument(
            "--device",
            choices=["cpu", "cuda"],
            default="cpu",
            help="what the artifact is for; a folder may hold one for each",
        )
        about = "store the weights also as this processor reads them, for sessions and processes to share: twice as large, still for any machine"
        parser.add_argument("--prepacked", action="store_true", help=about)
    return parser


def _exported(arguments: argparse.Namespace) -> str:
    check_empty(arguments.artifact, arguments.device)  # before anything is downloaded
    folder, name = _folder(arguments)
    manifest = export(
        folder,
        arguments.artifact,
        precision=arguments.precision,
        device=arguments.device,
        name=name,
        prepacked=arguments.prepacked,
    )
    return report(manifest, arguments.artifact / arguments.device)


def _described(arguments: argparse.Namespace) -> str:
    folder, name = _folder(arguments)
    return description(describe_checkpoint(Checkpoint(folder, name)))


def _folder(arguments: argparse.Namespace) -> tuple[Path, str]:
    """The checkpoint's folder and its name; the hub's files are fetched first."""
    if is_hub_id(arguments.checkpoint):
        return download(arguments.checkpoint, arguments.revision), arguments.checkpoint
    if arguments.revision:
        raise ExportError(
            f"--revision chooses among a hub repository's versions, and {arguments.checkpoint} is not a hub id (ORG/NAME)"
        )
    return Path(arguments.checkpoint), ""


def report(manifest: Manifest, artifact: Path) -> str:
    sizes = manifest.sizes
    size = f"{sizes['layers']} layers of {sizes['hidden']}, {sizes['parameters'] / 1e6:.1f} M parameters"
    lines = [
        f"wrote {artifact}: {manifest.family}, {size}, {manifest.precision}",
        f"  heads: {', '.join(manifest.heads)}; at most {manifest.max_tokens} tokens",
    ]
    if manifest.pooling != USUAL:
        lines.append(
            f"  sentence vectors: {manifest.pooling}, which /v1/embeddings gives; /embed gives [CLS] where a request does not say"
        )
    lines += [f"  without {head}: {reason}" for head, reason in manifest.missing.items()]
    lines += [f"  assumed {what}: {why}" for what, why in manifest.assumed.items()]
    lines += [f"  {name} {value:.2g}" for name, value in manifest.verification.items()]
    return "\n".join(lines)


def description(of: Description) -> str:
    width = max(len(name) for name, _ in of.found)
    lines = [f"{name:{width}}  {what}" for name, what in of.found]
    lines += [f"{'refused':{width}}  {reason}" for reason in of.refused] or [
        f"{'refused':{width}}  nothing: it can be exported"
    ]
    return "\n".join(lines)


def cli() -> int:
    """Entry point of `bert-export`; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cleans up as Ctrl-C does
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(cli())
