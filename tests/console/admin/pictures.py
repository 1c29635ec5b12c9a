"""Pictures of the admin for the documentation. Only `make pictures` keeps them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

DESKTOP = {"width": 1400, "height": 1000}
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[Page, str], None]:
    """Return a function that stores a page as `admin-NAME.png` in the folder that SKIPQUEUE_PICTURES names."""
    folder = Path(os.environ.get("SKIPQUEUE_PICTURES", tmp_path))

    def take(page: Page, name: str) -> None:
        page.evaluate("document.fonts.ready")
        page.screenshot(path=folder / f"admin-{name}.png", animations="disabled", caret="hide", scale="css")

    return take
