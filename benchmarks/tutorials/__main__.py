"""Generate the numbers and the picture of a tutorial by running its code.

``python -m benchmarks.tutorials NAME`` runs the code of docs/tutorials/NAME.md, which may read data sets from
$WHITENORM_DATA, and writes benchmarks/results/NAME.json, the page's table and its picture; with ``--tables`` from the
stored results.
"""

from __future__ import annotations

import argparse

from benchmarks.tutorials import TUTORIALS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=TUTORIALS, help="name of the page")
    parser.add_argument("--tables", action="store_true", help="only generate table and picture from the stored results")
    options = parser.parse_args()
    tutorial = TUTORIALS[options.name]
    if not options.tables:
        tutorial.store(tutorial.measure())
    tutorial.write(tutorial.load())


if __name__ == "__main__":
    main()
