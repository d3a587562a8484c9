"""The results of all experiments as a folder of HTML pages that needs nothing else."""

from whitenorm_lab.claims.site.files import STYLES as STYLES
from whitenorm_lab.claims.site.files import write_site as write_site
from whitenorm_lab.claims.site.paper import PaperParts as PaperParts
from whitenorm_lab.claims.site.paper import Section as Section
from whitenorm_lab.claims.site.paper import paper_parts as paper_parts
from whitenorm_lab.claims.site.pieces import data_file as data_file
from whitenorm_lab.claims.site.pieces import figure_file as figure_file
from whitenorm_lab.claims.site.pieces import page_file as page_file
