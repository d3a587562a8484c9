"""Run the benchmark suite: ``python -m benchmarks``, or ``make bench``."""

from __future__ import annotations

from benchmarks.run import Bench, run

if __name__ == "__main__":
    import tyro

    run(tyro.cli(Bench))
