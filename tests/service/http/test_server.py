"""A server process raises its limit on open files."""

import resource
from pathlib import Path

from benchmarks.harness.process import ServiceProcess


def test_the_soft_limit_on_open_files_is_raised_to_the_hard_limit(bert_artifact: Path) -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    service = ServiceProcess({"BERT_ARTIFACT": str(bert_artifact)})
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, soft), most))  # inherited by the child process
    try:
        with service:
            (limit,) = (
                line
                for line in Path(f"/proc/{service.process.pid}/limits").read_text().splitlines()
                if line.startswith("Max open files")
            )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    assert limit.split()[3:5] == [str(most), str(most)]
