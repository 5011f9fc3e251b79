"""What was found, as something to read and to send: a page, Markdown, LaTeX, still figures, the terminal.

Sections are plain data (`bayescal.benchmark.results`); nothing here computes a metric, and nothing here trains.
`tables.py` decides once what stands in each cell, what is best and what is second; each format only writes it down.
Plotly and matplotlib are imported by the functions that need them.
"""

from bayescal.report.latex import table_latex
from bayescal.report.load import read_sections
from bayescal.report.markdown import section_markdown, table_markdown
from bayescal.report.matplotlib_figures import matplotlib_figure
from bayescal.report.page import to_html
from bayescal.report.pictures import save_pictures
from bayescal.report.plotly_figures import plotly_figure
from bayescal.report.terminal import table_rich

__all__ = [
    "matplotlib_figure",
    "plotly_figure",
    "read_sections",
    "save_pictures",
    "section_markdown",
    "table_latex",
    "table_markdown",
    "table_rich",
    "to_html",
]
