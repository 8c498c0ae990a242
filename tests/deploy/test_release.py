"""What a release needs: actions by digest, one version in all files, absolute links in the packages."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.paths import README, ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def release_script() -> Any:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_its_digest(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    used = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)] == []


def test_a_tag_publishes_the_images_that_the_chart_names() -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))["jobs"]["images"]
    matrix = job["strategy"]["matrix"]
    stages = re.findall(r"^FROM \w+ AS (\w+)$", (ROOT / "docker" / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert set(matrix["target"]) <= set(stages)
    assert set(matrix["runtime"]) == {"cpu", "openvino", "cuda"}


def test_pyproject_chart_and_changelog_have_one_version_and_a_tag_of_another_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = release_script()
    assert re.fullmatch(r"\d+\.\d+\.\d+", script.version_of(ROOT))
    monkeypatch.setenv("GITHUB_REF_TYPE", "tag")
    monkeypatch.setenv("GITHUB_REF_NAME", "v9.9.9")
    with pytest.raises(SystemExit, match=r"the tag has 9\.9\.9"):
        script.version_of(ROOT)


def test_links_of_the_readme_are_absolute_in_the_packages() -> None:
    readme = release_script().absolute_links(README.read_text("utf-8"), "https://example.org/packbert", "v1.0.0")
    targets = re.findall(r"\]\(([^)\s]+)\)", readme) + re.findall(r'src="([^"]+)"', readme)
    assert [each for each in targets if not re.match(r"https?://|#|mailto:", each)] == []
    assert any(each.startswith("https://example.org/packbert/blob/v1.0.0/") for each in targets)
