"""The report as one HTML file: no scripts, nothing fetched, light and dark, printable."""

from kvtune.cli.reporters.html.page import render_html

__all__ = ["render_html"]
