"""The setting `ARCHIVE`."""

from datetime import timedelta
from typing import Any

import pytest

from django_skipqueue import conf


@pytest.mark.parametrize(
    ("setting", "archives", "expected"),
    [
        (False, False, timedelta(0)),
        (None, True, None),
        (90, True, timedelta(seconds=90)),
        (timedelta(days=365), True, timedelta(days=365)),
    ],
)
def test_the_archive_is_off_or_has_a_retention(settings: Any, setting: Any, archives: bool, expected: Any) -> None:
    assert not conf.settings.has_archive
    settings.SKIPQUEUE = {"ARCHIVE": setting}
    assert (conf.settings.has_archive, conf.settings.archive_retention) == (archives, expected)
