"""The programs of examples/ run against the bundled model and print what their first lines say."""

import subprocess
import sys

import pytest
import yaml

from tests.deploy.chart import render
from tests.docs.conftest import ClientOf
from tests.paths import ROOT

FOLDER = ROOT / "examples"
PROGRAMS = sorted([*FOLDER.glob("*.py"), *FOLDER.glob("*.sh")])
DATA = FOLDER / "data"


def run(name: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(FOLDER / name), *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def url(client_of: ClientOf) -> str:
    return str(client_of("sample").base_url)


def test_examples_are_short_and_listed() -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    assert [one.name for one in PROGRAMS if one.name not in page or one.read_text("utf-8").count("\n") >= 60] == []


def test_search_finds_the_line_that_means_the_same(url: str) -> None:
    first, *_ = run("search.py", str(DATA / "lines.txt"), "How do I cook rice?", url).splitlines()
    assert first.endswith("Boil the rice in water for twelve minutes.")


def test_a_question_of_the_quiz_has_the_right_word_and_three_others(url: str) -> None:
    questions = run("cloze_quiz.py", str(DATA / "quiz.txt"), url).strip().split("\n\n")
    assert len(questions) == 3
    for text, right in zip(questions, ("month", "tail", "意"), strict=True):
        choices = text.splitlines()[1].split()
        assert right in choices
        assert len(choices) == 8  # with their letters


def test_the_ordered_paragraphs_are_those_of_the_file(url: str) -> None:
    printed = run("order_paragraphs.py", str(DATA / "paragraphs.txt"), url).strip().split("\n\n")
    assert sorted(printed) == sorted((DATA / "paragraphs.txt").read_text("utf-8").strip().split("\n\n"))


def test_the_trained_classifier_knows_good_from_bad(client_of: ClientOf) -> None:
    rows = [line.split("\t") for line in (DATA / "reviews.tsv").read_text("utf-8").splitlines()]
    assert {(len(row), row[0]) for row in rows} == {(2, "好评"), (2, "差评")}
    texts = {"房间干净，服务热情，非常满意。": "好评", "质量太差，第一天就坏了。": "差评"}
    answers = client_of("reviews").post("/predict", json={"inputs": [[one] for one in texts]}).json()
    assert [one[0]["label"] for one in answers] == list(texts.values())


def test_the_script_for_kubernetes_is_bash_and_its_values_are_the_charts() -> None:
    subprocess.run(["bash", "-n", str(FOLDER / "kubernetes.sh")], check=True)
    rendered = render(yaml.safe_load((FOLDER / "kubernetes.yaml").read_text("utf-8")))
    assert rendered.environment["BERT_MODEL"] == "google-bert/bert-base-chinese"
    labels = rendered["Deployment"]["metadata"]["labels"]
    assert "app.kubernetes.io/instance" in labels
    assert "app.kubernetes.io/instance" in rendered["Service"]["metadata"]["labels"]
