"""Console output of commands."""

from rich.console import Console
from rich.table import Table


def create_console() -> Console:
    """Return a console that prints text verbatim: brackets and colons in file names are not markup."""
    return Console(markup=False, emoji=False)


def print_table(console: Console, table: Table) -> None:
    """Print a table; if the output is not a terminal, print one line per row with tabs between cells, never cut."""
    if console.is_terminal:
        console.print(table)
        return
    rows = zip(*([column.header, *column.cells] for column in table.columns), strict=True)
    lines = [
        table.title,
        *("\t".join("; ".join(str(cell).splitlines()) for cell in row) for row in rows),
        table.caption,
    ]
    # Bypass the console, which replaces tabs by spaces.
    for line in filter(None, lines):
        print(line, file=console.file)
