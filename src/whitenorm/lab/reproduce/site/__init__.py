"""The results of all experiments as a folder of HTML pages that needs nothing else."""

from whitenorm.lab.reproduce.site.files import STYLES, write_site
from whitenorm.lab.reproduce.site.paper import PaperParts, Section, paper_parts
from whitenorm.lab.reproduce.site.pieces import data_file, figure_file, page_file

__all__ = ["STYLES", "PaperParts", "Section", "data_file", "figure_file", "page_file", "paper_parts", "write_site"]
