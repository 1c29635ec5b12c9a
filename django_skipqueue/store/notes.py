"""The method that writes what attempts note while they run."""

from collections.abc import Iterable

from ..values.records import Noted
from . import sql
from .parameters import notes_as_values
from .statements import Statements


class Noting(Statements):
    """Used by workers."""

    def note_attempts(self, notes: Iterable[Noted]) -> set[int]:
        """Write progress and logs, many in one statement. Returns the ids of the jobs that were written.

        Does not wait for locks: neither a job whose lease is no longer valid nor a locked row is written.
        """
        return {id for (id,) in self.rows(sql.NOTE_ATTEMPTS, notes_as_values(notes))}
