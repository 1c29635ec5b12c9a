"""The tests of parts use the fixtures of the admin's tests."""

from ..console.admin.browser import chromium, complaints, open_admin, server, shared_chromium  # noqa: F401 (fixtures)
from ..console.admin.conftest import _fresh_notices, log_in, operator  # noqa: F401 (fixtures)
from ..console.admin.pictures import picture  # noqa: F401 (a fixture)
