"""The documentation of the archive names what exists."""

import re

from django_skipqueue.models import ArchivedJob

from ...docs.test_reference import REFERENCE


def test_tables_page_has_every_index_of_the_archive() -> None:
    _, _, from_archive_on = (REFERENCE / "tables.md").read_text().partition("## skipqueue_archivedjob")
    section, _, _ = from_archive_on.partition("\n## ")
    assert set(re.findall(r"^\| `(skipqueue_\w+)`", section, re.MULTILINE)) == {
        index.name for index in ArchivedJob._meta.indexes
    }
