"""What commands print on."""

from rich.console import Console
from rich.table import Table


def terminal() -> Console:
    """A console that shows text as it is: brackets and colons in the name of a file are no markup."""
    return Console(markup=False, emoji=False)


def print_table(console: Console, table: Table) -> None:
    """Print a table; where the output is no terminal, print a line per row, uncut, with a tab between its cells."""
    if console.is_terminal:
        console.print(table)
        return
    rows = zip(*([column.header, *column.cells] for column in table.columns), strict=True)
    lines = [table.title, *("\t".join(map(_on_one_line, row)) for row in rows), table.caption]
    # Not by the console, which puts spaces for tabs.
    for line in filter(None, lines):
        print(line, file=console.file)


def _on_one_line(cell: object) -> str:
    return "; ".join(str(cell).splitlines())
