"""An artifact says which model it was made of, and two exports of a checkpoint are the same."""

import shutil
from pathlib import Path

import pytest

from packbert.model_export.__main__ import main
from packbert.model_export.artifact.manifest import MANIFEST, WEIGHTS, Identity, Manifest
from packbert.model_export.checkpoint import Checkpoint
from tests.paths import GOLDEN, SAMPLE

RESULTS = "model-index:\n- name: e5\n  results:\n" + "  - license: none\n    value: 1\n" * 20_000  # 600 kB


def with_card(folder: Path, card: str | bytes) -> Path:
    """A checkpoint in `folder` with a model card."""
    shutil.copytree(GOLDEN / "bert", folder)
    (folder / "README.md").write_bytes(card if isinstance(card, bytes) else card.encode())
    return folder


def test_licence_and_languages_are_those_of_the_model_card() -> None:
    stated = Identity(version="", source="sample", revision="", license="cc-by-sa-4.0", languages=("en", "zh"))
    assert Checkpoint(SAMPLE).identity == stated
    assert Checkpoint(SAMPLE, "mine").identity == stated


@pytest.mark.parametrize(
    ("card", "licence", "languages"),
    [
        ("", "", ()),
        ("# license: mit\n", "", ()),
        ("---\nlicense: mit\n", "mit", ()),
        ("---\nlicense: mit\n---\nlanguage: en\n", "mit", ()),
        ("---\nlanguage: no\n---\n", "", ("no",)),  # Norwegian, which YAML takes for false
        ("---\nlanguage:\n- en\n- zh  # simplified\nlicense: 'apache-2.0'\n---\n", "apache-2.0", ("en", "zh")),
        ("---\nlanguage:\n  - en\ntags:\n- license: gpl\nlicense: [mit, bsd]\n---\n", "mit, bsd", ("en",)),
        ("---\nlicense: other\nlicense_name: gemma\n---\n", "gemma", ()),
        ("---\nlicense: other\n---\n", "other", ()),
        ("---\nlicense:\nlanguage: {en: 1}\n---\n", "", ()),
        (b"\xef\xbb\xbf---\r\nlicense: mit\r\nlanguage:\r\n- de\r\n---\r\n", "mit", ("de",)),
        (b"---\nlicense: \xff\xfe\n---\n", "\ufffd\ufffd", ()),
        (f"---\n{RESULTS}license: mit\n---\n", "mit", ()),
        ("---\nlicense: *mit\nlanguage: en\n---\n", "", ()),  # no YAML
        ("---\nlanguage: " + "[" * 5000 + "\n---\n", "", ()),
    ],
)
def test_a_model_card_states_licence_and_languages_or_nothing(
    card: str | bytes, licence: str, languages: tuple[str, ...], tmp_path: Path
) -> None:
    found = Checkpoint(with_card(tmp_path / "bert", card)).identity
    assert (found.license, found.languages) == (licence, languages)


def test_a_folder_of_the_hubs_cache_is_its_repository_at_its_commit(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--bert" / "snapshots" / "1a2b"
    shutil.copytree(GOLDEN / "bert", folder)
    checkpoint = Checkpoint(folder, "mine")
    assert (checkpoint.identity.source, checkpoint.identity.revision, checkpoint.name) == ("org/bert", "1a2b", "mine")


def test_an_artifact_is_described_and_its_files_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = "---\nlicense: mit\nlanguage: [en, zh]\n---\n"
    checkpoint, artifact = with_card(tmp_path / "bert", card), tmp_path / "artifact"
    assert main([str(checkpoint), str(artifact), "--name", "mine", "--version", "2.1"]) == 0
    written = capsys.readouterr().out
    assert main([str(artifact)], "describe") == 0
    assert f"wrote {capsys.readouterr().out}" == written
    manifest = Manifest.read(artifact / "cpu")
    lines = written.splitlines()
    assert lines[0].startswith(f"wrote {artifact / 'cpu'}: mine, bert, 3 layers of 32, ")
    assert lines[1] == f"  digest {manifest.digest}, exported by {manifest.exporter}"
    assert lines[2:6] == ["  version: 2.1", "  source: bert", "  licence: mit", "  languages: en, zh"]
    assert "  cls_max_abs_error " in written
    (artifact / "cpu" / WEIGHTS).write_bytes(b"")
    assert main([str(artifact)], "describe") == 2
    assert f"{WEIGHTS} is damaged" in capsys.readouterr().err


def test_two_exports_of_a_checkpoint_have_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert main([str(GOLDEN / "bert"), str(tmp_path / name), "--version", "2"]) == 0
    first, second = tmp_path / "first" / "cpu", tmp_path / "second" / "cpu"
    assert {path.name for path in first.iterdir()} == {*Manifest.read(first).files, MANIFEST}
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name
