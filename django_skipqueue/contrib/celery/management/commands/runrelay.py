"""`manage.py runrelay`: hand jobs over to a carrier, such as Celery, until a signal stops the command."""

import json
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ..... import conf
from .....console.cli import run as serving
from .....console.cli.run import RunworkerOptions, within
from .....console.cli.subcommand import Exit
from .....console.cli.terminal import Console
from .....events.log_format import counted, printable
from .....exceptions import QueueUnavailable
from .....queue.store import Store
from .....values.bounds import did_you_mean
from .....worker.options import WorkerOptions
from .....worker.preflight import check_database
from ...carrier import CarrierMisconfigured
from ...relay import RelayOptions
from ...rows import Reclaim, carriers_in, home_in
from ...settings import CarrierSettings, carriers, make_carrier


class Command(BaseCommand):
    """Claims the jobs of a carrier's queues, hands them over to the carrier, and settles the outcomes."""

    help = (
        "Hand the jobs of the queues in SKIPQUEUE['CARRIERS'] over to a carrier, such as Celery, and store their "
        "outcomes. All options except --reclaim, --yes and --show-topology can also be set in the environment."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        self._add = add = RunworkerOptions(parser)
        settings = conf.load_or_default()
        add("--carrier", help="the name of the carrier; needed if SKIPQUEUE['CARRIERS'] has several")
        add("--processes", type=within("processes"), default=1, help="number of relay processes")
        serving.add_times(add, settings)
        serving.add_place(add, settings)
        parser.add_argument(
            "--reclaim",
            metavar="NAME",
            help="release all jobs of this carrier, because it has lost them, and exit; jobs that it has not lost will "
            "run twice",
        )
        parser.add_argument("--yes", action="store_true", help="with --reclaim: do not ask for confirmation")
        parser.add_argument(
            "--show-topology",
            action="store_true",
            help="print the exchanges, queues and bindings that the carrier needs in RabbitMQ, and the permissions of "
            "its user, as JSON for rabbitmqctl import_definitions, and exit",
        )

    def handle(self, **options: Any) -> None:
        if options["reclaim"] is not None:
            self._reclaim(options["reclaim"], serving.databases_of(options), is_confirmed=options["yes"])
            return
        if options["show_topology"]:
            self._show_topology(chosen(options["carrier"]), serving.databases_of(options))
            return
        serving.set_up(self._add, options)
        carrier = chosen(options["carrier"])
        relays = self.options_of_loops(carrier, options)
        unreachable = serving.check(relays)
        listener = serving.listen_for_probes(options)
        queue_pairs = ", ".join(f"{queue} ({celery_queue})" for queue, celery_queue in carrier.queues.items())
        serving.introduce(
            relays,
            does=f"hands jobs over to the carrier {carrier.name}",
            at_once=f"at most {counted(carrier.window, 'job')} at the carrier",
            what=f"{counted(len(carrier.queues), 'queue')}, each with its Celery queue in {carrier.app}: {queue_pairs}",
        )
        serving.name_unreachable(unreachable)
        serving.run(relays, lifeline=None, listener=listener)

    def options_of_loops(self, carrier: CarrierSettings, options: dict[str, Any]) -> list[WorkerOptions]:
        return serving.for_each_database(
            options,
            RelayOptions,
            carrier=carrier.name,
            queue_names=tuple(carrier.queues),
            external_queues=frozenset(conf.settings.external_queues),
        )

    def _show_topology(self, carrier: CarrierSettings, databases: Iterable[str]) -> None:
        """Print the exchanges and queues. Their names contain the time in the carrier's row, so this writes the row."""
        stores, problems = _usable(databases)
        if problems:
            raise CommandError(" ".join(problems))
        try:
            celery_carrier = make_carrier(carrier, conf.settings.database)
        except CarrierMisconfigured as error:
            raise CommandError(str(error)) from error
        definitions = celery_carrier.definitions([home_in(store, carrier) for store in stores])
        self.stdout.write(json.dumps(definitions, indent=2))

    def _reclaim(self, name: str, databases: Iterable[str], *, is_confirmed: bool) -> None:
        """Release the carrier's jobs in each database that can be used."""
        stores, problems = _usable(databases)
        known_names = set(carriers()).union(*map(carriers_in, stores))
        if stores and name not in known_names:
            advice = did_you_mean(name, sorted(known_names)) if known_names else " No relay has ever served a carrier."
            raise CommandError(f"There is no carrier {name!r}.{advice}")
        reclaims = [Reclaim.begin(store, name) for store in stores]
        held_count = sum(reclaim.count() for reclaim in reclaims)
        if held_count and not is_confirmed:
            console, jobs = Console(self), f"{counted(held_count, 'job')} of the carrier {name}"
            if not console.is_interactive:
                raise CommandError(
                    f"Cannot ask whether to release {jobs}. Use --yes to release them without asking.",
                    returncode=Exit.USAGE,
                )
            if not console.confirm(f"Release {jobs}? Jobs that it has not lost will run twice."):
                raise CommandError("Nothing was changed.", returncode=Exit.NEGATIVE)
        for reclaim in reclaims:
            alias, released = reclaim.store.alias, sum(reclaim.run())
            self.stdout.write(f"{alias}: {counted(released, 'job')} of {printable(name)} released.")
            if left_count := reclaim.count():
                problems.append(
                    f"{alias}: {counted(left_count, 'job')} could not be released, because other transactions have "
                    "locked their rows. Run the command again."
                )
        if problems:
            raise CommandError(" ".join(problems))


def chosen(name: str | None) -> CarrierSettings:
    """Return the carrier with this name, or the only carrier. Raises `CommandError` if there is no such carrier."""
    carriers_by_name = carriers()
    if not carriers_by_name:
        raise CommandError(
            "SKIPQUEUE['CARRIERS'] contains no carrier, so there is nothing to relay. For an example, see the "
            "documentation's page about settings (docs/reference/settings.md)."
        )
    if name is None:
        if len(carriers_by_name) > 1:
            raise CommandError(
                f"There are several carriers: use --carrier {' or --carrier '.join(sorted(carriers_by_name))}."
            )
        [carrier] = carriers_by_name.values()
        return carrier
    if name not in carriers_by_name:
        raise CommandError(
            f"--carrier (SKIPQUEUE_CARRIER): SKIPQUEUE['CARRIERS'] has no carrier {str(name)!r}."
            f"{did_you_mean(name, list(carriers_by_name))}"
        )
    return carriers_by_name[name]


def _usable(databases: Iterable[str]) -> tuple[list[Store], list[str]]:
    stores: list[Store] = []
    problems: list[str] = []
    for alias in databases:
        try:
            check_database(alias)
            stores.append(Store(alias))
        except QueueUnavailable as error:
            problems.append(str(error))
    return stores, problems
