"""One page of everything, results/local/report.html, self-contained: Jinja2 template, Vega-Lite for the figures."""
