"""Builds what a release publishes beside the images, in build/release: the wheel, the source archive and the chart.

python .ci/release.py ADDRESS REGISTRY    ADDRESS: of the repository's web pages; REGISTRY: of the images

The version is that of pyproject.toml; it is refused where the chart or CHANGELOG.md have another one, or where the tag
in GITHUB_REF_NAME differs. README's links are relative in the repository and absolute in the packages.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "release"
CHART = Path("deploy/helm/packbert")
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#|mailto:)([^)\s]+)\)|(<img[^>]* src=\")(?!https?://)([^\"]+)")


def version_of(source: Path) -> str:
    """The version. Raises SystemExit where two files disagree."""
    version: str = tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    chart = (source / CHART / "Chart.yaml").read_text("utf-8")
    found = {
        "Chart.yaml version": re.findall(r"^version: (\S+)", chart, re.MULTILINE),
        "Chart.yaml appVersion": re.findall(r"^appVersion: (\S+)", chart, re.MULTILINE),
        "CHANGELOG.md": re.findall(r"^## \[?(\d[\w.]*)", (source / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[
            :1
        ],
    }
    if os.environ.get("GITHUB_REF_TYPE") == "tag":
        found["the tag"] = [os.environ["GITHUB_REF_NAME"].removeprefix("v")]
    wrong = [f"{name} has {', '.join(versions) or 'none'}" for name, versions in found.items() if versions != [version]]
    if wrong:
        raise SystemExit(f"pyproject.toml has the version {version}, but {'; '.join(wrong)}")
    return version


def absolute_links(markdown: str, address: str, tag: str) -> str:
    """Relative links lead to the files of that tag."""

    def replace(found: re.Match[str]) -> str:
        image, text, path, tag_head, source = found.groups()
        if source:
            return f"{tag_head}{address}/raw/{tag}/{source}"
        return f"{image}[{text}]({address}/{'raw' if image else 'blob'}/{tag}/{path})"

    return LINK.sub(replace, markdown)


def main(address: str, registry: str) -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    source = OUTPUT / "source"
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(source, filter="tar")
    version = version_of(source)
    for name in ("README.md", "README.zh-CN.md"):
        if (page := source / name).exists():
            page.write_text(absolute_links(page.read_text("utf-8"), address, f"v{version}"), "utf-8")
    project = source / "pyproject.toml"
    changes = f"{address}/blob/v{version}/CHANGELOG.md"
    urls = f'[project.urls]\nSource = "{address}"\nChangelog = "{changes}"\n\n[project.scripts]'
    project.write_text(project.read_text("utf-8").replace("[project.scripts]", urls, 1), "utf-8")
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "build", "--quiet", "--out-dir", OUTPUT / "dist", source], check=True)
    packages = sorted((OUTPUT / "dist").glob("packbert-*"))
    subprocess.run([uv, "tool", "run", "--quiet", "twine", "check", "--strict", *packages], check=True)

    import helm_python  # not where only the functions above are used

    values = source / CHART / "values.yaml"
    text = values.read_text("utf-8").replace('  registry: ""\n', f"  registry: {registry}\n", 1)
    values.write_text(text.replace('  version: ""\n', f"  version: {version}\n", 1), "utf-8")
    with helm_python.Chart.load(source / CHART) as chart:
        chart.save(OUTPUT / "chart")
    shutil.rmtree(source)
    sys.stdout.write("".join(f"{path.relative_to(ROOT)}\n" for path in sorted(OUTPUT.rglob("packbert-*"))))


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2])
