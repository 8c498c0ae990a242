"""A job of a file on all nodes of a Ray cluster: Ray Data reads, answers and writes it in parts."""

from service.bulk.job import Job
from service.settings import Settings


def run_on_ray(job: Job, settings: Settings) -> int:
    raise NotImplementedError
