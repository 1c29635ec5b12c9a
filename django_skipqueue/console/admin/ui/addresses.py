"""The addresses of our pages: each carries what parts want carried from page to page, such as the database it shows.

Every link, form and redirect of ours is made here, or by the tag `queue_address`. `OwnViews` and `OwnChangeList` add
what is carried to the addresses that Django's admin makes on our pages.
"""

from collections.abc import Mapping
from typing import Any

from django.urls import reverse
from django.utils.http import urlencode

from ...parts import consoles

PREFIX = "django_skipqueue_"
"""With what the names of the pages begin, as Django knows them."""


def carried() -> dict[str, str]:
    """What the query of every address has: names and values."""
    return {name: value for part in consoles() if part.carried is not None for name, value in part.carried().items()}


def carrying(address: str) -> str:
    """The address, which may be a query alone, with what is carried."""
    more = urlencode(carried())
    separator = "" if address.endswith("?") else "&" if "?" in address else "?"
    return f"{address}{separator}{more}" if more else address


def address_of(page: str, *args: Any, query: str | Mapping[str, Any] = "", site: str | None = None) -> str:
    """The address of a page by its name: `address_of("job_change", 42)`. `site`: the name of the admin site."""
    path = reverse(f"admin:{PREFIX}{page}", args=args, current_app=site)
    query = query if isinstance(query, str) else urlencode(query, doseq=True)
    return carrying(f"{path}?{query}" if query else path)
