"""One page of everything, results/local/report.html, self-contained: a Jinja2 template, figures as SVG."""
