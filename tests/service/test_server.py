"""What a server process asks of the system: as many connections as it may have."""

import resource
import subprocess
import sys

LIMITED = """
import resource
from service.server import allow_connections
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
allow_connections()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_low_soft_limit_on_open_files_is_raised_to_the_hard_one() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found = subprocess.run([sys.executable, "-c", LIMITED], check=True, capture_output=True, text=True).stdout
    assert found.split() == [str(most), str(most)]
