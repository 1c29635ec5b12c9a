"""Code that the admin pages share: table cells, URLs, time limits and base views."""
