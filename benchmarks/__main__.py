"""Run the benchmark suite: ``make bench``, or ``python -m benchmarks`` in a checkout."""

from __future__ import annotations

from benchmarks.run import Bench, run

if __name__ == "__main__":
    import tyro

    run(tyro.cli(Bench))
