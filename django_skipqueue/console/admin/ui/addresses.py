"""The addresses of our pages: each carries what parts want carried from page to page, such as the database it shows.

This module, or the tag `queue_address`, makes every address of our links, forms and redirects. `OwnViews` and
`OwnChangeList` add the carried parameters to the addresses that Django's admin makes on our pages.
"""

from collections.abc import Mapping
from typing import Any

from django.urls import reverse
from django.utils.http import urlencode

from ...parts import consoles

PAGE_NAME_PREFIX = "django_skipqueue_"
"""The beginning of the names of our pages in Django's URL configuration."""


def carried() -> dict[str, str]:
    """The parameters that the query of every address has: names and values."""
    return {name: value for part in consoles() if part.carried is not None for name, value in part.carried().items()}


def carrying(address: str) -> str:
    """The address with the carried parameters. It may be a query alone."""
    more = urlencode(carried())
    separator = "" if address.endswith("?") else "&" if "?" in address else "?"
    return f"{address}{separator}{more}" if more else address


def address_of(page: str, *args: Any, query: str | Mapping[str, Any] = "", site: str | None = None) -> str:
    """The address of a page by its name: `address_of("job_change", 42)`. `site`: the name of the admin site."""
    path = reverse(f"admin:{PAGE_NAME_PREFIX}{page}", args=args, current_app=site)
    query = query if isinstance(query, str) else urlencode(query, doseq=True)
    return carrying(f"{path}?{query}" if query else path)
