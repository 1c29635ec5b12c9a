"""The links and forms of a page, as a browser finds them."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

QUEUE_PAGES = "/admin/django_skipqueue/"


@dataclass
class Form:
    """A form: its address, and the values that it sends."""

    action: str
    method: str
    fields: dict[str, list[str]] = field(default_factory=dict)
    can_be_sent: bool = False
    """Whether the form has a submit button."""

    @property
    def alias(self) -> str | None:
        """The database that the request of this form names."""
        values = self.fields.get("database", []) if self.method == "get" else []
        return values[0] if values else database_of(self.action if self.method == "post" else "")


class Page(HTMLParser):
    """The links and forms that lead to pages of the queue. Links to other databases are listed separately."""

    def __init__(self, html: str, address: str) -> None:
        super().__init__()
        self.address = address
        self.links: list[str] = []
        self.switch: dict[str, str] = {}
        """The links of the menu that switches to another database, by alias."""
        self.table: dict[str, str] = {}
        """The links of the table of databases, by alias."""
        self.box: dict[str, str] = {}
        """The links of the box that names other databases with problems, by alias."""
        self.forms: list[Form] = []
        self._in_box = False
        self._in_switch = False
        self._in_table = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        attributes = dict(attrs)
        if tag == "nav":
            self._in_switch = attributes.get("class") == "skipqueue-databases"
        elif tag == "ul":
            self._in_box = attributes.get("aria-label") == "Other databases"
        elif tag == "section":
            self._in_table = attributes.get("aria-labelledby") == "skipqueue-databases"
        elif tag in ("a", "area") and not attributes.get("href", "#").startswith("#"):
            self._add_link(urljoin(self.address, attributes["href"]))
        elif tag == "form":
            path = urlsplit(self.address).path
            action = attributes.get("action") or path  # a form without an action posts to its page
            self.forms.append(Form(urljoin(path, action), (attributes.get("method") or "get").lower()))
        elif tag in ("input", "button") and self.forms:
            form = self.forms[-1]
            if attributes.get("type", "submit" if tag == "button" else "text") == "submit":
                form.can_be_sent = True
                form.action = urljoin(form.action, attributes.get("formaction"))
            if attributes.get("name"):
                form.fields.setdefault(attributes["name"], []).append(attributes.get("value") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "nav":
            self._in_switch = False
        elif tag == "ul":
            self._in_box = False
        elif tag == "section":
            self._in_table = False

    def _add_link(self, address: str) -> None:
        if self._in_switch:
            self.switch[str(database_of(address))] = address
        elif self._in_box:
            self.box[str(database_of(address))] = address
        elif self._in_table:
            self.table[str(database_of(address))] = address
        elif address.startswith(QUEUE_PAGES) and address != QUEUE_PAGES:
            self.links.append(address)

    @property
    def own_forms(self) -> list[Form]:
        """The forms that lead to a page of the queue. Django puts each list into a form, even without a button."""
        return [form for form in self.forms if form.can_be_sent and form.action.startswith(QUEUE_PAGES)]


def database_of(address: str) -> str | None:
    """The database that an address names."""
    aliases = parse_qs(urlsplit(address).query).get("database")
    assert not aliases or len(aliases) == 1, address
    return aliases[0] if aliases else None


def with_database(address: str, alias: str) -> str:
    """The address with this database as its parameter."""
    return f"{address}{'&' if '?' in address else '?'}database={alias}"
