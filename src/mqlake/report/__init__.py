"""Render one HTML page from plain values. Needs no network and only the standard library.

    Path("report.html").write_text(mqlake.report.render(report))

`data.py` says what a report holds, `page.py` puts its parts together, `charts.py` draws.
"""

from mqlake.report.data import Report
from mqlake.report.page import render

__all__ = ["Report", "render"]
