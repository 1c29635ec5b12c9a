"""Charts as SVG: the geometry, and the texts beside it. The template is `admin/django_skipqueue/chart.html`."""
