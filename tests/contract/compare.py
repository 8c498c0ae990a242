"""Compares two checkouts byte for byte on this machine: `python -m tests.contract.compare OLD NEW`."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.contract.answers import Form, differences, exact
from tests.contract.running import ask_all
from tests.contract.services import SERVICES


def ask(checkout: Path) -> dict[str, Form]:
    with tempfile.TemporaryDirectory() as folder:
        answers = ask_all(SERVICES, checkout.resolve(), Path(folder))
    return {name: exact(request, answer) for name, (request, answer) in answers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.contract.compare", description=__doc__)
    parser.add_argument("old", type=Path, help="folder of a checkout")
    parser.add_argument("new", type=Path, help="folder of another one; the requests are those of this checkout")
    arguments = parser.parse_args()
    old, new = ask(arguments.old), ask(arguments.new)
    different = {name: list(differences(old[name], new[name])) for name in old if old[name] != new[name]}
    for name, found in sorted(different.items()):
        sys.stdout.write(f"{name}\n" + "".join(f"  {one}\n" for one in found))
    sys.stdout.write(f"{len(old)} requests, {len(different)} answers differ\n")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
