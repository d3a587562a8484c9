"""What commands print on."""

from rich.console import Console


def terminal() -> Console:
    """A console that shows text as it is: brackets and colons in the name of a file are no markup."""
    return Console(markup=False, emoji=False)
