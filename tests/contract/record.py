"""Writes the answers of a checkout's services as one file: `python -m tests.contract.record [OUT] [--checkout DIR]`."""

import argparse
import json
import tempfile
from pathlib import Path

from tests.contract.answers import Form, differences, rounded
from tests.contract.running import Answers, ask_all
from tests.contract.services import SERVICES
from tests.paths import ROOT

FILE = Path(__file__).parent / "answers.jsonl"


def to_forms(answers: Answers) -> dict[str, Form]:
    return {name: rounded(request, answer) for name, (request, answer) in answers.items()}


def read() -> dict[str, Form]:
    """The recorded answers, by name."""
    lines = (json.loads(line) for line in FILE.read_text("utf-8").splitlines())
    return {line.pop("name"): line for line in lines}


def compare(answers: Answers, recorded: dict[str, Form]) -> list[str]:
    """Each difference to the recorded answers, in words."""
    found = []
    for name, form in to_forms(answers).items():
        if answer_of := answers[name][0].answer_of:
            lines = (line.removesuffix(", Origin") for line in form["headers"])
            form["headers"] = [line for line in lines if line != "vary: Origin"]  # of BERT_CORS_ORIGINS
        expected = recorded.get(answer_of or name)
        if expected is None:
            found.append(f"{name}: it is not recorded")
        else:
            found += [f"{name}\n  {one}" for one in differences(expected, form)]
    return found


def write(answers: Answers, file: Path) -> None:
    """One line for each answer, by name. Raises ValueError where an answer that is that of another one differs."""
    forms = to_forms(answers)
    if different := compare({name: one for name, one in answers.items() if one[0].answer_of}, forms):
        raise ValueError("\n".join(different))
    kept = sorted(name for name, (request, _) in answers.items() if not request.answer_of)
    lines = (json.dumps({"name": name} | forms[name], ensure_ascii=False, separators=(",", ":")) for name in kept)
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.contract.record", description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=FILE, help="default: the file that the test reads")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose service is asked (default: this one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        answers = ask_all(SERVICES, arguments.checkout.resolve(), Path(folder))
    write(answers, arguments.out)


if __name__ == "__main__":
    main()
