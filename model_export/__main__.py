"""`python -m model_export CHECKPOINT ARTIFACT [--precision fp32|fp16|int8] [--device cpu|cuda]`: arguments in, one export, a report out."""

import argparse
import sys
from pathlib import Path

from model_export.errors import ExportError
from model_export.export import export
from model_export.linear import PRECISIONS
from model_export.manifest import Manifest


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m model_export", description="Converts a trained BERT to an ONNX artifact for `python -m service`."
    )
    parser.add_argument("checkpoint", type=Path, help="a Hugging Face folder: config.json, *.safetensors, tokenizer.json or vocab.txt")
    parser.add_argument("artifact", type=Path, help="the folder to write; must not exist or be empty")
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="fp32", help="fp16 for cuda, int8 for the cpu (default: fp32)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="what the artifact is for; a folder may hold one for each")
    arguments = parser.parse_args()
    try:
        manifest = export(arguments.checkpoint, arguments.artifact, precision=arguments.precision, device=arguments.device)
    except ExportError as error:
        print(f"model_export: {error}", file=sys.stderr)
        return 2
    print(report(manifest, arguments.artifact / arguments.device))
    return 0


def report(manifest: Manifest, artifact: Path) -> str:
    sizes = manifest.sizes
    size = f"{sizes['layers']} layers of {sizes['hidden']}, {sizes['parameters'] / 1e6:.1f} M parameters"
    lines = [
        f"wrote {artifact}: {manifest.family}, {size}, {manifest.precision}",
        f"  heads: {', '.join(manifest.heads)}; at most {manifest.max_tokens} tokens",
    ]
    lines += [f"  without {head}: {reason}" for head, reason in manifest.missing.items()]
    lines += [f"  assumed {what}: {why}" for what, why in manifest.assumed.items()]
    lines += [f"  {name} {value:.2g}" for name, value in manifest.verification.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
