"""The URLs of our pages.

Parts may add parameters that every URL carries, such as the current database. All URLs of our links, forms and
redirects come from this module, or from the template tag `queue_address`. `OwnViews` and `OwnChangeList` add the
carried parameters to the URLs that Django's admin creates on our pages.
"""

from collections.abc import Mapping
from typing import Any

from django.urls import reverse
from django.utils.http import urlencode

from ...parts import consoles

PAGE_NAME_PREFIX = "django_skipqueue_"
"""The prefix of our pages' names in Django's URL configuration."""


def carried_parameters() -> dict[str, str]:
    """Return the query parameters that every URL carries."""
    return {
        name: value
        for part in consoles()
        if part.carried_parameters is not None
        for name, value in part.carried_parameters().items()
    }


def carrying(address: str) -> str:
    """Add the carried parameters to a URL, or to a query such as `?range=6h`."""
    carried_query = urlencode(carried_parameters())
    separator = "" if address.endswith("?") else ("&" if "?" in address else "?")
    return f"{address}{separator}{carried_query}" if carried_query else address


def address_of(page: str, *args: Any, query: str | Mapping[str, Any] = "", site: str | None = None) -> str:
    """Return the URL of a named page, such as `address_of("job_change", 42)`. `site`: the admin site's name."""
    path = reverse(f"admin:{PAGE_NAME_PREFIX}{page}", args=args, current_app=site)
    query = query if isinstance(query, str) else urlencode(query, doseq=True)
    return carrying(f"{path}?{query}" if query else path)
