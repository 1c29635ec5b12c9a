"""A real Chromium for the tests of the admin.

Without Chromium, these tests are skipped; with SKIPQUEUE_REQUIRE_BROWSER=1, they fail. All tests share one Chromium,
because starting it takes longer than most tests, and each test has its own windows. Playwright's event loop runs in the
thread of the tests. The event loop is hidden while no test uses the browser, because Django cleans up the database
after each test, and refuses to work in a thread that runs an event loop.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Error,
    Page,
    Playwright,
    expect,
    sync_playwright,
)

CHROMIUM_COMMANDS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECURITY_POLICY = "default-src 'self'"
PAGE_TIMEOUT = 20_000
"""A test waits this many milliseconds until a page has the expected state."""
skip_by_default = pytest.mark.skipif(
    os.environ.get("SKIPQUEUE_ALL_WIDTHS") != "1", reason="SKIPQUEUE_ALL_WIDTHS=1 is not set"
)
"""Marks a further run of a test in another width or colour scheme, which `make test` skips."""


class ContentSecurityPolicy:
    """Middleware that allows only scripts, styles and images from files of this server."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Add the policy to the response of the view."""
        response = self.get_response(request)
        response.headers["Content-Security-Policy"] = SECURITY_POLICY
        return response


class Complaints(list[str]):
    """Errors that the browser reports on a page: violations of the policy, failed scripts, and missing files."""

    def listen_to(self, page: Page) -> None:
        """Collect the errors of this page."""
        page.on("console", self._add_message)
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("dialog", self._dismiss)

    def _dismiss(self, dialog: Dialog) -> None:
        self.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def _add_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "favicon" not in message.location.get("url", ""):
            self.append(f"{message.text} ({message.location.get('url')})")


class Chromium:
    """A Chromium that is started when it is first used, and again if a test has killed it."""

    def __init__(self, playwright: Playwright, path: str) -> None:
        self._playwright = playwright
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._browser: Browser | None = None
        self._window: BrowserContext | None = None

    @contextmanager
    def in_use(self) -> Iterator[Browser]:
        """Yield the browser for one test, and close its windows afterwards."""
        with self._running(self._loop):
            if self._browser is None or not self._browser.is_connected():
                self._browser = self._playwright.chromium.launch(executable_path=self._path, args=CHROMIUM_FLAGS)
            yield self._browser
            with suppress(Error):  # the browser has died, so the test has already failed
                for context in self._browser.contexts:
                    if context is not self._window:
                        context.close()
                    else:
                        for tab in context.pages[1:]:
                            tab.close()

    def window(self, address: str) -> BrowserContext:
        """Return a context without options and cookies, which knows nothing of the server at this address.

        Each test gets the same context, because it takes half a second to open a window. An empty tab keeps it open.
        """
        assert self._browser
        if self._window is None or self._window not in self._browser.contexts:
            self._window = self._browser.new_context()
            self._window.new_page()
        self._window.clear_cookies()
        forgotten = {"origin": address.removesuffix("/admin/"), "storageTypes": "all"}
        self._window.new_cdp_session(self._window.pages[0]).send("Storage.clearDataForOrigin", forgotten)
        return self._window

    def hidden(self) -> AbstractContextManager[None]:
        """Hide the event loop of this thread between the tests."""
        return self._running(None)

    @staticmethod
    @contextmanager
    def _running(loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
        previous_loop = asyncio._get_running_loop()
        asyncio._set_running_loop(loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(previous_loop)


@pytest.fixture(scope="session")
def shared_chromium() -> Iterator[Chromium]:
    """Yield the Chromium that all tests of this process share."""
    path = next(filter(None, map(shutil.which, CHROMIUM_COMMANDS)), None)
    if path is None:
        reason = f"there is no Chromium ({', '.join(CHROMIUM_COMMANDS)}) for the browser tests"
        if os.environ.get("SKIPQUEUE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    expect.set_options(timeout=PAGE_TIMEOUT)
    with sync_playwright() as playwright:
        chromium = Chromium(playwright, path)
        with chromium.hidden():
            yield chromium


@pytest.fixture
def chromium(server: str, shared_chromium: Chromium) -> Iterator[Browser]:
    """Yield a running Chromium. The fixture `server` starts first, so that it ends after the last window is closed."""
    with shared_chromium.in_use() as browser:
        yield browser


@pytest.fixture
def complaints() -> Complaints:
    """Return the list of errors that the browser reports on the pages of this test."""
    return Complaints()


@pytest.fixture
def server(transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the admin with the security policy, and yield its address."""
    from pytest_django.live_server_helper import LiveServer

    # Playwright's event loop runs in this thread, so Django would refuse the test's own queries as blocking calls.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    settings.ALLOWED_HOSTS = ["localhost"]
    settings.MIDDLEWARE = [f"{__name__}.ContentSecurityPolicy", *settings.MIDDLEWARE]
    live = LiveServer("localhost")
    yield f"{live.url}/admin/"
    live.stop()


@pytest.fixture
def open_admin(
    chromium: Browser, shared_chromium: Chromium, server: str, complaints: Complaints, client: Any
) -> Callable[..., Page]:
    """Return a function that opens a page of the admin as a user, in a separate window with these options."""
    used: list[BrowserContext] = []

    def open_page(user: Any, address: str = "", *, viewport: Any = None, **options: Any) -> Page:
        client.force_login(user)
        context = chromium.new_context(**options) if options or used else shared_chromium.window(server)
        used.append(context)
        context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": server}])
        page = context.new_page()
        if viewport:
            page.set_viewport_size(viewport)
        page.set_default_timeout(PAGE_TIMEOUT)
        complaints.listen_to(page)
        page.goto(server + address)
        return page

    return open_page
