"""How Sphinx builds this documentation. It needs no network and no database: the code is imported, never run."""

import re
import sys
from pathlib import Path
from typing import Any

import django
from django.conf import settings

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "never-connected"}},
    INSTALLED_APPS=["django_skipqueue", "django_skipqueue.contrib.celery"],
    USE_TZ=True,
)
django.setup()

import django_skipqueue  # noqa: E402 (it needs the settings)

project = "django_skipqueue"
author = "django_skipqueue contributors"
copyright = f"2026, {author}"
version = release = django_skipqueue.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"django_skipqueue {release}"
html_static_path = ["_static"]
html_css_files = ["extra.css"]
html_favicon = "_static/favicon.svg"
html_theme_options = {
    "source_repository": "https://github.com/django-skipqueue/django-skipqueue/",
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_prompt_text = "$ "
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"  # docstrings write `name`, as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

ARGUMENTS = re.compile(r"^[a-z_]+(?:(?: \([^)]*\))?, [a-z_]+)*(?: \([^)]*\))?: ")


def list_arguments(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Show a docstring's lines `name, name: what it is` as a list; what follows such a line belongs to it."""
    in_list = False
    for number, line in enumerate(lines):
        is_item = bool(ARGUMENTS.match(line))
        in_list = bool(line) and (is_item or in_list)
        if in_list:
            lines[number] = f"- {line}" if is_item else f"  {line}"


def setup(app: Any) -> None:
    """Connect what shapes docstrings."""
    app.connect("autodoc-process-docstring", list_arguments)
