"""The child process of a check whose tokenizer never finishes to load."""

import resource
from typing import NoReturn

from packbert.model_export.tokenizer_check import CPU_SECONDS, check_in_child


def spin(_: str) -> NoReturn:
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    assert soft == CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (1, hard))
    while True:
        pass


if __name__ == "__main__":
    check_in_child(spin)
