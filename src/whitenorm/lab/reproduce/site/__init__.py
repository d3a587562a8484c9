"""The results of all experiments as a folder of HTML pages that needs nothing else."""

from whitenorm.lab.reproduce.site.files import write_site

__all__ = ["write_site"]
