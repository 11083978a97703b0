"""One HTML file about a run (docs/report.md): `view.read_history` reads, `sections` arranges, `page` renders.

The document consists of plain blocks (`model`). Only the template makes elements of them, so that untrusted text is
escaped in one place.
"""
