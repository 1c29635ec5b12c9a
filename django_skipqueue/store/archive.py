"""The methods that keep the partitions of the archive."""

from django.db import transaction

from ..conf import settings
from . import policy_sql, sql
from .statements import Statements

PATIENCE = "1s"
"""How long a statement waits for a lock, as PostgreSQL writes it. A lock on the archive keeps those that come after it
waiting, so no transaction that makes or drops a partition waits for one long itself."""


class Archiving(Statements):
    """Used by supervisors and `prunejobs`. Any number of them may do it; none waits longer than a second for a lock."""

    def make_partitions(self, *, ahead: int = 0) -> int:
        """Make the partitions that are missing. Returns their number.

        Needed are those of the months with finished jobs, of this month, and of as many months `ahead`. Raises a
        `DatabaseError` if another transaction holds a lock, or the role may not create tables.
        """
        values = {"ahead": ahead, "kept": settings.archive_retention}
        if not self.rows(policy_sql.MISSING_PARTITIONS, values):
            return 0
        with transaction.atomic(using=self.alias):
            self.execute(sql.SET_LOCK_TIMEOUT, {"timeout": PATIENCE})
            self.execute(policy_sql.LOCK_ARCHIVE)
            missing = self.rows(policy_sql.MISSING_PARTITIONS, values)
            for create, attach in missing:
                self.execute(create)
                self.execute(attach)
        return len(missing)

    def drop_partition(self) -> bool:
        """Drop the oldest partition that is past the retention of the archive. Returns whether there was one."""
        values = {"kept": settings.archive_retention}
        for (drop,) in self.rows(policy_sql.EXPIRED_PARTITION, values):
            with transaction.atomic(using=self.alias):
                self.execute(sql.SET_LOCK_TIMEOUT, {"timeout": PATIENCE})
                self.execute(drop)
            return True
        return False
