"""What the commands of bulk jobs print when they end, and their exit codes."""

import sys
from collections.abc import Callable

from service.bulk.files import FileError
from service.errors import ServiceError


def run_command(program: str, answer: Callable[[], int], *wrong: type[Exception]) -> int:
    """Runs `answer`, which returns the number of rows that were refused, and reports under the name `program`.

    The exit code: 0 when all rows are answered, 3 when some were skipped, 2 for a file or one of `wrong`, 130 for
    Ctrl-C, 1 for a request that failed.
    """
    faults: tuple[type[Exception], ...] = (FileError, OSError, *wrong)
    try:
        refused = answer()
    except faults as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    except ServiceError as error:
        print(f"{program}: {error}; the same command continues", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: stopped; the same command continues", file=sys.stderr)
        return 130
    if refused:
        print(f"{program}: {refused} rows were refused and have no answer", file=sys.stderr)
    return 3 if refused else 0
