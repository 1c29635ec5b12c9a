"""Puts the database that a page shows into every address of ours in a response: links, forms, and where it redirects.

This is done to the finished response, and not where addresses are made, because Django's own templates and its admin
make many of them. So nobody can forget a link, a form or a verb, and no button acts on a job with the same id in
another database. Every address gets it, also of the database that is shown by default: a page that was opened before
the setting `DATABASE` changed still acts on its own. Pure.
"""

import re
from collections.abc import Iterable
from html import escape, unescape
from urllib.parse import parse_qs, urlencode, urlsplit

PARAMETER = "database"
"""In the query of an address: the alias of the database that its page shows."""

LINK = re.compile(r'(\s(?:href|action|formaction)=")([^"]*)"')
"""An attribute with an address. In the texts of a page, quotes are escaped."""

FORM = re.compile(r"<form\b([^>]*)>")
POSTS = re.compile(r'\smethod="post"', re.IGNORECASE)
ACTION = re.compile(r'\saction="([^"]*)"')

CONTENT = re.compile(r'<div id="content"[^>]*>')


class Carrier:
    """Carries the alias of one database through the addresses of one page."""

    def __init__(self, alias: str, path: str, query: str, prefixes: Iterable[str]) -> None:
        """`path`, `query`: the address of the page itself. `prefixes`: with what the paths of our pages begin."""
        self._carried = urlencode({PARAMETER: alias})
        self._field = f'<input type="hidden" name="{PARAMETER}" value="{escape(alias)}">'
        self._prefixes = tuple(prefixes)
        self._own = self.address(f"{path}?{query}")

    def address(self, address: str) -> str:
        """The address with the database, if it leads to a page of ours and names none."""
        parts = urlsplit(address)
        is_ours = parts.path.startswith(self._prefixes) if parts.path else address.startswith("?")
        if parts.netloc or not is_ours or PARAMETER in parse_qs(parts.query, keep_blank_values=True):
            return address
        query = f"{parts.query}&{self._carried}" if parts.query else self._carried
        return parts._replace(query=query).geturl()

    def html(self, page: str) -> str:
        return LINK.sub(self._link, FORM.sub(self._form, page))

    def with_switch(self, page: str, switch: str) -> str:
        """The page with the switch at the top of its content; a part of a page has none."""
        return CONTENT.sub(lambda found: found[0] + switch, page, count=1)

    def _link(self, found: re.Match[str]) -> str:
        address = unescape(found[2])
        carried = self.address(address)
        return found[0] if carried == address else f'{found[1]}{escape(carried)}"'

    def _form(self, found: re.Match[str]) -> str:
        """A form that is not posted gets a field: browsers put the fields in place of the query of its address."""
        attributes = found[1]
        action = ACTION.search(attributes)
        if not POSTS.search(attributes):
            is_ours = not action or not action[1] or action[1].startswith(("?", *self._prefixes))
            return f"{found[0]}{self._field}" if is_ours else found[0]
        if action and action[1]:
            return found[0]
        return f'<form{ACTION.sub("", attributes)} action="{escape(self._own)}">'
