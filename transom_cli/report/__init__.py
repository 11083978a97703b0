"""One HTML file that tells a run (docs/report.md): `gather` reads, `document` arranges, `page` writes markup.

What is drawn is plain shapes (`shapes`), and only the template makes elements of it: whatever comes from outside is
escaped in one place.
"""
