"""`packbert export CHECKPOINT ARTIFACT`, `packbert describe MODEL` and `packbert download CHECKPOINT`."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from packbert.parser import Parser, one_of

from .artifact.lifeline import end_with
from .artifact.manifest import TOKENIZER, Manifest, ManifestError, available
from .errors import ExportError, HubUnavailable
from .folder import check_empty
from .hub import locate, locate_base

CHECKPOINT = (
    "a folder with config.json, weights and tokenizer files, or a hub id like google-bert/bert-base-uncased, with a "
    "branch, tag or commit after @"
)
EXAMPLES = {
    "export": (
        "packbert export google-bert/bert-base-chinese artifacts/chinese",
        "packbert export ./my-checkpoint artifacts/mine --precision int8",
    ),
    "describe": ("packbert describe google-bert/bert-base-chinese", "packbert describe artifacts/mine"),
    "download": (
        "packbert download google-bert/bert-base-chinese",
        "packbert export $(packbert download google-bert/bert-base-chinese@main) artifacts/chinese",
    ),
}
ABOUT = {
    "export": "Converts a trained BERT to an ONNX artifact for `packbert serve`.",
    "describe": "Describes a checkpoint without exporting it, or checks and describes an artifact.",
    "download": "Downloads a checkpoint by its hub id into the hub's cache (HF_HOME) and prints its folder.",
}


def main(words: Sequence[str], command: str = "export") -> int:
    """Runs the command; returns the exit code."""
    arguments = _parser(command).read(words)
    if arguments.parent is not None:
        end_with(arguments.parent, signal.SIGTERM)
    try:
        if command == "describe":
            return _describe(arguments.checkpoint)
        print(locate(arguments.checkpoint)[0] if command == "download" else _export(arguments))
    except (ExportError, ManifestError, OSError) as error:  # OSError: a file of the checkpoint may not be read
        print(f"packbert {command}: {error}", file=sys.stderr)
        return os.EX_TEMPFAIL if isinstance(error, HubUnavailable) else 2
    except KeyboardInterrupt:
        print(f"packbert {command}: interrupted, nothing was written", file=sys.stderr)
        return 130
    return 0


def _parser(command: str) -> Parser:
    exports = command == "export"
    model, about = ("MODEL", f"an artifact, {CHECKPOINT}") if command == "describe" else ("CHECKPOINT", CHECKPOINT)
    usage = f"{model} ARTIFACT [FLAGS]" if exports else model
    parser = Parser(f"packbert {command}", usage, ABOUT[command], EXAMPLES[command])
    parser.add("model", "checkpoint", metavar=model, help=about)
    # the process that starts the export, which ends with it
    parser.add("model", "--parent", type=int, help=argparse.SUPPRESS)
    if exports:
        from .build import PRECISIONS  # a download takes a third of its time without ONNX
        from .export import AUTO

        precisions = (AUTO, *sorted(PRECISIONS))
        parser.add("model", "artifact", metavar="ARTIFACT", type=Path, help="the folder to write; must be new or empty")
        about = "the model's name (default: the hub id, or the folder's name)"
        parser.add("model", "--name", default="", metavar="NAME", help=about)
        about = "the model's version, which /info and describe show"
        parser.add("model", "--version", default="", metavar="VERSION", help=about)
        about = "the model that an adapter of peft is for (default: the model that its adapter_config.json names)"
        parser.add("model", "--base", default="", metavar="CHECKPOINT", help=about)
        about = "what a classifier classifies, texts or tokens, if config.json does not say it"
        parser.add("model", "--head", metavar="labels|tags", type=one_of("labels", "tags"), help=about)
        about = "export a sentence-transformers checkpoint without its modules that are not computed"
        parser.add("model", "--without-modules", action="store_true", help=about)
        about = (
            "fp16 for cuda, int8 or bf16 for cpu; auto: the latter if they are fast and exact enough (default: fp32)"
        )
        shown = {"metavar": "|".join(precisions), "type": one_of(*precisions), "help": about}
        parser.add("speed", "--precision", default="fp32", **shown)
        about = "the device that the artifact is for; a folder may hold an artifact for each (default: cpu)"
        shown = {"metavar": "cpu|cuda", "type": one_of("cpu", "cuda"), "help": about}
        parser.add("speed", "--device", default="cpu", **shown)
        about = "store the weights also packed for this CPU, so that sessions and processes share them: twice as large"
        parser.add("speed", "--prepacked", action="store_true", help=f"{about}, and still usable on any machine")
    return parser


def _export(arguments: argparse.Namespace) -> str:
    from .export import export

    check_empty(arguments.artifact, arguments.device)  # before a download
    folder, name = locate(arguments.checkpoint)
    manifest = export(
        folder,
        arguments.artifact,
        precision=arguments.precision,
        device=arguments.device,
        name=arguments.name or name,
        version=arguments.version,
        prepacked=arguments.prepacked,
        without_modules=arguments.without_modules,
        base=locate_base(folder, arguments.base),
        head=arguments.head or "",
    )
    return f"wrote {report(manifest, arguments.artifact / arguments.device)}"


def _describe(model: str) -> int:
    """Describes an artifact or a checkpoint; returns the exit code. Raises ManifestError for a damaged artifact."""
    if devices := available(Path(model)):
        for folder in (Path(model) / device for device in devices):
            manifest = Manifest.read(folder)
            manifest.check_files(folder)
            print(report(manifest, folder))
        return 0
    from .describe import describe_checkpoint

    folder, name = locate(model)
    description = describe_checkpoint(folder, name, base=locate_base(folder, ""))
    print(description)
    return 2 if description.refused else 0


def report(manifest: Manifest, artifact: Path) -> str:
    """What an artifact is, the heads that are missing, every default that was assumed, and the errors measured."""
    from .artifact.special_tokens import describe_own_of_file

    sizes = manifest.sizes
    size = f"{sizes['layers']} layers of {sizes['hidden']}, {sizes['parameters'] / 1e6:.1f} M parameters"
    lines = [
        f"{artifact}: {manifest.name}, {manifest.family}, {size}, {manifest.precision}",
        f"  digest {manifest.digest}, exported by {manifest.exporter}",
        *(f"  {name}: {words}" for name, words in manifest.identity.stated.items()),
        f"  heads: {', '.join(manifest.heads)}; at most {manifest.max_tokens} tokens",
    ]
    embedding = manifest.embedding
    made_by = ", ".join(embedding.modules) or "the hidden state of [CLS]"
    kept = f", of which the first {embedding.kept_dimensions} are kept" if embedding.kept_dimensions else ""
    lines.append(f"  embeddings by default: {made_by}; {embedding.dimensions} numbers{kept}")
    if embedding.prompts:
        default = embedding.default_prompt or "none"
        lines.append(f"  prompts: {', '.join(embedding.prompts)}; by default {default}")
    if own := describe_own_of_file(artifact / TOKENIZER, manifest.special_tokens):
        lines.append(f"  special tokens: {own}")
    lines += [f"  without module {module}: it is not computed (--without-modules)" for module in embedding.left_out]
    lines += [f"  without {head}: {reason}" for head, reason in manifest.missing.items()]
    lines += [f"  assumed {what}: {why}" for what, why in manifest.assumed.items()]
    lines += [_error(name, value) for name, value in manifest.verification.items()]
    return "\n".join(lines)


def _error(name: str, value: float) -> str:
    """A line about an error. A cosine has five digits, because 0.99631 is not 1."""
    if not name.endswith("_cosine"):
        return f"  {name} {value:.2g}"
    names = {"cls": "[CLS]", "mean": "mean", "sentence": "default"}
    what = names.get(name.removesuffix("_smallest_cosine"), "self-test's")
    return f"  {name} {value:.5f}: of the {what} vectors to the checkpoint's own, over random texts; 1 means equal"


def cli(words: Sequence[str], command: str = "export") -> int:
    """`main` in a process of its own."""
    signal.signal(signal.SIGTERM, _interrupt)
    return main(words, command)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of a handler
    """Does what Ctrl-C does, which cleans up; a second signal does not interrupt that."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(cli(sys.argv[1:]))
