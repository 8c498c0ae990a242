"""`python -m benchmarks.fleet`: simulates (some minutes), writes fleet.json and the tables of the page on fleets."""

from benchmarks.fleet.experiments import run_all
from benchmarks.fleet.tables import main
from benchmarks.harness.machine import write

if __name__ == "__main__":
    write("fleet", run_all())
    main()
