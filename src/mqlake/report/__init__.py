"""One page for people, drawn from plain values: no network, and no package but the standard library.

    Path("report.html").write_text(mqlake.report.render(report))

`data.py` says what a report holds, `sections.py` how it is told, `charts.py` how it is drawn.
"""

from mqlake.report.data import Report
from mqlake.report.page import render

__all__ = ["Report", "render"]
