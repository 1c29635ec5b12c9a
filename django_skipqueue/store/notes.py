"""The method that writes what attempts note while they run."""

from collections.abc import Iterable

from ..values.records import LeaseRef, Noted
from . import sql
from .parameters import leases_as_values, notes_as_values
from .statements import Statements


class Noting(Statements):
    """Used by workers and relays."""

    def note_attempts(self, notes: Iterable[Noted]) -> set[int]:
        """Write progress and logs, many in one statement. Returns the ids of the jobs that were written.

        Does not wait for locks: neither a job whose lease is no longer valid nor a locked row is written.
        """
        statement = self.chosen(sql.NOTE_ATTEMPTS, sql.NOTE_CARRIED_ATTEMPTS, notes_as_values(notes))
        return {id for (id,) in self.rows(*statement)}

    def note_begun(self, leases: Iterable[LeaseRef]) -> None:
        """Write that these jobs of the relay's carrier have begun, after others that had them are gone."""
        self.rows(sql.NOTE_BEGUN, leases_as_values(leases) | self.carrier)
