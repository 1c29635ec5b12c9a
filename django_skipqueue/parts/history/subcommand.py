"""`skipqueue failures`: list why attempts fail, as the page "Failing now" does; show or acknowledge one cause.

The command masks secrets, as `skipqueue list` does.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...console.cli.list import call_of
from ...console.cli.options import full_task_name, positive
from ...console.cli.show import LABEL_WIDTH
from ...console.cli.subcommand import Exit, Watchable
from ...console.cli.terminal import DIM, RED, YELLOW, Coloured, Console, operator, shown_time
from ...console.durations import distance, moment
from ...console.search import cause_of
from ...events.log_format import printable
from ...models import Job
from ...queue.store import Store
from ...values.codec import shorten
from ...values.records import Cause
from .bystanders import bystanders
from .causes import (
    LONGEST_NOTE,
    MOST_CAUSES_RANKED,
    FailureCounts,
    Standing,
    acknowledge,
    failing_causes,
    last_messages,
    unacknowledge,
)

CAUSE_HEADINGS = ("key", "standing", "10 min", "24 h", "7 d", "first seen", "last seen", "task", "error")

STANDING_COLOURS = {Standing.FAILING: RED, Standing.OPEN: YELLOW, Standing.STOPPED: DIM, Standing.ACKNOWLEDGED: DIM}

MOST_HOURS_PRINTED = 24
"""For one cause, at most this many hours with failed attempts are printed, the latest."""


class ListFailures(Watchable):
    name = "failures"
    help = "List the causes of failed attempts, or show or acknowledge one cause"
    json_help = "print a JSON object for each cause"

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("key", nargs="?", metavar="KEY", help="show this cause, by its key in the list, with its last traceback")
        add("--task", metavar="TASK", help="list only this task; a unique end of its name is enough")
        add(
            "--since",
            type=moment,
            metavar="TIME",
            help="list only causes that failed since: 15m, 2d, today, 2026-11-25",
        )
        add("--limit", type=positive, default=20, help="how many causes to list (default: 20)")
        add("--acknowledge", action="store_true", help="move this cause to the end of the list until it comes back")
        add("--take-back", action="store_true", help="take the cause's acknowledgement back")
        add("--note", default="", metavar="TEXT", help="the reason for the acknowledgement")

    def runs_in_all_databases(self, options: Mapping[str, Any]) -> bool:
        return options["key"] is None

    def run(self, console: Console, **options: Any) -> Exit:
        store, key, since = Store.default(), options["key"], options["since"]
        changes = options["acknowledge"] or options["take_back"]
        if (changes and key is None) or (options["note"] and not options["acknowledge"]):
            example = "skipqueue failures KEY --acknowledge --note TEXT"
            raise CommandError(f"Say which cause: {example}", returncode=Exit.USAGE)
        task = full_task_name(options["task"]) if options["task"] else ""
        causes = failing_causes(store, limit=MOST_CAUSES_RANKED, task=task)
        bystander_sentences = bystanders(store, causes)
        causes.sort(key=lambda counts: (counts.standing, counts.cause in bystander_sentences))
        if key is not None:
            cause_counts = _with_key(causes, key)
            if changes:
                return _change(console, store, cause_counts, options)
            return _show(console, store, cause_counts, bystander_sentences.get(cause_counts.cause, ""), options)
        if since:
            causes = [counts for counts in causes if counts.last_at >= _since_time(since, counts.now)]
        _list(console, store, causes[: options["limit"]], bystander_sentences, in_json=options["json"])
        if len(causes) > options["limit"]:
            console.say(f"There are {len(causes):,} causes; --limit shows more.")
        return Exit.DONE if causes else Exit.NEGATIVE


def _since_time(since: datetime | timedelta, now: datetime) -> datetime:
    return since if isinstance(since, datetime) else now - since


def _list(
    console: Console,
    store: Store,
    shown: list[FailureCounts],
    bystander_sentences: Mapping[Cause, str],
    *,
    in_json: bool,
) -> None:
    messages = last_messages(store, shown)
    if in_json:
        for counts in shown:
            console.json(_as_json(counts, messages.get(counts.cause), bystander_sentences.get(counts.cause, "")))
    elif shown:
        rows = [
            _row(counts, messages.get(counts.cause, ""), is_bystander=counts.cause in bystander_sentences)
            for counts in shown
        ]
        console.table(CAUSE_HEADINGS, rows, right=CAUSE_HEADINGS[2:5])
        sentences = [bystander_sentences[counts.cause] for counts in shown if counts.cause in bystander_sentences]
        for sentence in dict.fromkeys(sentences):  # each sentence once
            console.say(sentence)
    else:
        console.say("No attempt failed in this time.")


def _show(
    console: Console, store: Store, counts: FailureCounts, why_not_to_blame: str, options: Mapping[str, Any]
) -> Exit:
    message, traceback = last_messages(store, [counts]).get(counts.cause), _traceback(counts)
    if options["json"]:
        console.json(_as_json(counts, message, why_not_to_blame) | {"traceback": traceback or None})
        return Exit.DONE
    for line in _lines_about(counts, message or "", why_not_to_blame):
        console.line(printable(line))
    if traceback:
        console.line()
    for line in traceback.splitlines():
        console.line(printable(line))
    return Exit.DONE


def _with_key(causes: list[FailureCounts], key: str) -> FailureCounts:
    """Return the cause whose key begins with `key`. Raises `CommandError` unless there is exactly one."""
    with_prefix = [cause for cause in causes if key and cause.key.startswith(key)]
    if len(with_prefix) != 1:
        how_many = "No cause of the last 7 days" if not with_prefix else "More than one cause"
        raise CommandError(printable(f"{how_many} has the key {key!r}. List the causes: skipqueue failures"))
    return with_prefix[0]


def _change(console: Console, store: Store, counts: FailureCounts, options: Mapping[str, Any]) -> Exit:
    if options["take_back"]:
        is_done = unacknowledge(store, counts.cause)
        console.say(f"Cause {counts.key} is {'no longer acknowledged' if is_done else 'not acknowledged'}.")
    else:
        is_done = acknowledge(store, counts.cause, by=operator(), note=shorten(options["note"], LONGEST_NOTE))
        console.say(f"Cause {counts.key} is acknowledged.")
    return Exit.DONE if is_done else Exit.NEGATIVE


def _standing(counts: FailureCounts, *, is_bystander: bool) -> Coloured:
    if is_bystander:
        return Coloured("bystander", DIM)
    texts = {Standing.OPEN: "no attempt since"}
    return Coloured(texts.get(counts.standing, counts.standing.name.lower()), STANDING_COLOURS[counts.standing])


def _distance_and_deployment(moment: datetime, now: datetime, deployment: str) -> str:
    return f"{distance(moment, now)}{f' in {deployment}' if deployment else ''}"


def _error(counts: FailureCounts, message: str) -> str:
    text = f"{counts.exception}: {message}" if message else counts.exception
    return f"{text} in {counts.place}" if counts.place else text


def _row(counts: FailureCounts, message: str, *, is_bystander: bool) -> list[str]:
    return [
        counts.key,
        _standing(counts, is_bystander=is_bystander),
        f"{counts.in_ten_minutes:,}",
        f"{counts.in_day:,}",
        f"{counts.in_week:,}",
        _distance_and_deployment(counts.first_at, counts.now, counts.first_deployment),
        _distance_and_deployment(counts.last_at, counts.now, counts.last_deployment),
        counts.task,
        _error(counts, message),
    ]


def _lines_about(counts: FailureCounts, message: str, why_not_to_blame: str) -> Iterator[str]:
    acknowledged_at = counts.acknowledged_at
    by = f"{shown_time(acknowledged_at)} by {counts.acknowledged_by}" if acknowledged_at else ""
    acknowledged = [by, counts.note] if acknowledged_at else []
    first_seen = _distance_and_deployment(counts.first_at, counts.now, counts.first_deployment)
    last_seen = _distance_and_deployment(counts.last_at, counts.now, counts.last_deployment)
    facts = {
        "cause": counts.key,
        "task": counts.task,
        "error": _error(counts, message),
        "standing": why_not_to_blame or str(_standing(counts, is_bystander=False)),
        "attempts": f"{counts.in_ten_minutes:,} in 10 min, {counts.in_hour:,} in 1 h, {counts.in_day:,} in 24 h, "
        f"{counts.in_week:,} in 7 d",
        "first seen": f"{shown_time(counts.first_at)}, {first_seen}",
        "last seen": f"{shown_time(counts.last_at)}, {last_seen}",
        "last job": str(counts.last_job_id),
        "acknowledged": ": ".join(filter(None, acknowledged)),
    }
    for label, value in facts.items():
        if value:
            yield f"{label:<{LABEL_WIDTH}}{value}"
    for index, (hour, failed) in enumerate(sorted(counts.by_hour.items())[-MOST_HOURS_PRINTED:]):
        label = "by hour" if index == 0 else ""
        yield f"{label:<{LABEL_WIDTH}}{shown_time(_start_of(hour))}  {failed:,}"


def _traceback(counts: FailureCounts) -> str:
    """Return the last traceback, with secrets masked; empty if the job was deleted or has had another error since."""
    job = Job.objects.filter(pk=counts.last_job_id).first()
    if job is None or cause_of(job) != counts.cause:
        return ""
    return call_of(job).text(str(job.errors[-1].get("traceback") or "")).rstrip()


def _start_of(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * 3_600, UTC)


def _as_json(counts: FailureCounts, message: str | None, why_not_to_blame: str) -> dict[str, Any]:
    return {
        "key": counts.key,
        "standing": counts.standing.name.lower(),
        "bystander": why_not_to_blame or None,
        **counts.cause._asdict(),
        "line": counts.last_line,
        "message": message,
        "in_10_minutes": counts.in_ten_minutes,
        "in_1_hour": counts.in_hour,
        "in_24_hours": counts.in_day,
        "in_7_days": counts.in_week,
        "by_hour": {_start_of(hour).isoformat(): number for hour, number in sorted(counts.by_hour.items())},
        "first_at": counts.first_at,
        "first_deployment": counts.first_deployment,
        "last_at": counts.last_at,
        "last_deployment": counts.last_deployment,
        "last_job_id": counts.last_job_id,
        "acknowledged_at": counts.acknowledged_at,
        "acknowledged_by": counts.acknowledged_by,
        "note": counts.note,
    }
