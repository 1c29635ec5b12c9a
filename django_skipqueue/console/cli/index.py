"""`skipqueue index`: build the indexes of `SKIPQUEUE["SEARCHABLE"]`, and drop those that it has no more."""

import time
from typing import Any

from django.core.management.base import CommandError

from ...queue.store import Store
from ..durations import span
from ..search_indexes import existing, problems, wanted
from .reindex import DROP_INDEX, OnIndexes, change_index
from .subcommand import Exit
from .terminal import Console


class Index(OnIndexes):
    name = "index"
    help = "Build the indexes of the arguments that SEARCHABLE names, one at a time, while jobs run"

    def change(self, console: Console, store: Store, **options: Any) -> Exit:
        if found := list(problems()):
            raise CommandError(" ".join(found))
        is_done = not options["dry_run"]
        named, found_now = {index.name: index for index in wanted()}, existing(store)
        for old in found_now:
            if old.is_being_built:
                console.line(f"{old.name}: another session builds it now")
                named.pop(old.name, None)
            elif old.name not in named or not old.is_valid:
                if is_done:
                    change_index(store, DROP_INDEX, schema=old.schema, name=old.name)
                reason = "an interrupted build has left it" if old.name in named else "SEARCHABLE does not have it"
                console.line(f"{old.name}: {reason}, {'dropped' if is_done else 'would be dropped'}")
        valid = {old.name for old in found_now if old.is_valid}
        for index in named.values():
            if index.name in valid:
                console.line(f"{index.name}: {index}, exists")
                continue
            start = time.monotonic()
            if is_done:
                index.create(store)
            took = span(time.monotonic() - start)
            console.line(f"{index.name}: {index}, {f'built in {took}' if is_done else 'would be built'}")
        return Exit.DONE
