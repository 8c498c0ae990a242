"""The flags of `packbert`: one for each setting."""

import pytest

from packbert.service.settings import Settings, variables_of


def test_a_flag_sets_the_variable_of_its_setting() -> None:
    words = ["--model", "org/bert@v1", "--max-inputs=7", "--truncate", "--normalize", "false", "--precision", "auto"]
    variables = variables_of(words)
    assert variables == {
        "BERT_MODEL": "org/bert@v1",
        "BERT_MAX_INPUTS": "7",
        "BERT_TRUNCATE": "true",
        "BERT_NORMALIZE": "false",
        "BERT_PRECISION": "auto",
    }
    settings = Settings.from_environment(variables)
    assert (settings.max_inputs, settings.truncate, settings.normalize) == (7, True, False)


def test_help_lists_every_setting_but_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        variables_of(["--help"])
    words = capsys.readouterr().out.replace("[", " ").replace("]", " ").split()
    missing = [name for name in Settings.model_fields if f"--{name.replace('_', '-')}" not in words]
    assert missing == ["api_key"]  # all users of a machine can read a command line


@pytest.mark.parametrize("words", [["--api-key", "secret"], ["--max-input", "7"], ["org/bert"]])
def test_an_unknown_flag_ends_the_process(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        variables_of(words)
    assert ended.value.code == 2
    assert "packbert: error: unrecognized arguments: " in capsys.readouterr().err
