"""HTML page of inspections that opens without a network."""

from whitenorm.diagnostics.page.document import html_page

__all__ = ["html_page"]
