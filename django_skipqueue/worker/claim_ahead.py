"""Decides which jobs of limits a worker claims ahead, beyond the permits that it has. `lines` says why the limit holds.

Long jobs are not claimed ahead: another worker may have a free slot for them.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping

from ..execution.lines import MOST_AHEAD, Lines
from ..values.records import AheadWish, Attempt, LeaseRef


class ClaimAhead:
    """Used by the control loop's thread."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def wishes(self, ending: Iterable[Attempt]) -> list[AheadWish]:
        """What to claim in the transaction that settles these attempts."""
        now, wishes = time.monotonic(), []
        for key, attempts in self._by_key(ending).items():
            line = self._lines.get(key)
            job = attempts[0].job
            if line is None or any(
                (other.job.task, other.job.queue_name) != (job.task, job.queue_name) for other in attempts
            ):
                continue
            line.ended.add(len(attempts), now)
            most = min(line.ended.count(now), MOST_AHEAD) - line.waiting
            if most > 0 and line.permits > 0:
                wishes.append(AheadWish(key, job.task, job.queue_name, line.permits, most, sorted(line.leases)))
        return wishes

    def keeps_permits(self, ending: Iterable[Attempt]) -> set[LeaseRef]:
        """Those of these attempts that free no permit: other jobs of this worker have it already."""
        kept: set[LeaseRef] = set()
        for key, attempts in self._by_key(ending).items():
            line, refs = self._lines.get(key), {attempt.job.ref for attempt in attempts}
            if line and len(line.leases - refs) >= line.permits > 0:
                kept |= refs
        return kept

    def _by_key(self, attempts: Iterable[Attempt]) -> Mapping[str, list[Attempt]]:
        by_key: defaultdict[str, list[Attempt]] = defaultdict(list)
        for attempt in attempts:
            if attempt.job.permit_key is not None:
                by_key[attempt.job.permit_key].append(attempt)
        return by_key
