"""A part can change how jobs are placed into several databases. These tests define their own parts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from django.contrib import admin
from django.http import HttpResponse
from django.test import RequestFactory

from django_skipqueue.console.admin.dashboard import SECTIONS, sections
from django_skipqueue.console.cli import run
from django_skipqueue.console.parts import PartConsole, PartSection
from django_skipqueue.console.rules.examination import RULES, rules_of
from django_skipqueue.console.rules.rule import Rule
from django_skipqueue.jobs.placement import Placement
from django_skipqueue.models import Job
from django_skipqueue.values import part as parts
from django_skipqueue.values.part import Part, install_parts
from django_skipqueue.values.records import EncodedCall, JobSpec
from django_skipqueue.worker.options import WorkerOptions

from ..app.jobs import add, noop

pytestmark = [pytest.mark.core, pytest.mark.django_db(transaction=True, databases=["default", "other"])]

BOTH_DATABASES = ("default", "other")


@pytest.fixture(autouse=True)
def install_part(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that installs one part in place of all other parts. Before its call, no part is installed."""
    monkeypatch.setattr(parts, "parts_by_name", {})
    placements_before = [*parts.placements_of_parts]
    parts.placements_of_parts.clear()
    yield lambda **options: install_parts([Part(name="mail", **options)])
    parts.placements_of_parts[:] = placements_before


class PlacementByNumber(Placement):
    """Places calls with an odd number in another database."""

    def choose(self, spec: JobSpec, call: EncodedCall, *, named: str | None = None, shard: str | None = None) -> str:
        return BOTH_DATABASES[int(call.args[1]) % 2]

    def choose_many(
        self, spec: JobSpec, calls: Sequence[EncodedCall], *, named: str | None = None, shards: Sequence[str | None]
    ) -> list[str]:
        return [self.choose(spec, call) for call in calls]


def test_without_a_part_jobs_are_in_the_database_of_their_options_or_of_the_settings(settings: Any) -> None:
    assert noop.defer()._state.db == "default"
    assert noop.using(database="other").defer_many([(), ()]).databases == ["other"] * 2
    settings.SKIPQUEUE = {"DATABASE": "other"}
    assert noop.defer()._state.db == "other"
    assert [Job.objects.using(alias).count() for alias in BOTH_DATABASES] == [1, 3]


def test_a_part_chooses_the_database_of_each_job(install_part: Callable[..., None]) -> None:
    install_part(placement=PlacementByNumber())
    assert [add.defer(number)._state.db for number in range(3)] == ["default", "other", "default"]
    assert add.defer_many([(3,), (4,)]).databases == ["other", "default"]


def test_one_command_serves_several_databases_if_a_part_allows_it(install_part: Callable[..., None]) -> None:
    options = {"database": "default, other"}
    assert run.databases_of(options) == ("default, other",)
    databases_run: list[Any] = []

    def run_all(workers: Sequence[WorkerOptions], **options: Any) -> int:
        databases_run.extend([worker.database for worker in workers])
        return 7

    install_part(run_supervisors=run_all)
    assert run.databases_of(options) == BOTH_DATABASES
    with pytest.raises(SystemExit, match="7"):
        run.run([WorkerOptions(name=alias, database=alias) for alias in BOTH_DATABASES], lifeline=None, listener=None)
    assert databases_run == ["default", "other"]


def test_a_rule_of_a_part_may_apply_to_only_some_databases(install_part: Callable[..., None]) -> None:
    letters_rule = Rule("letters", lambda _: (), "No letter is lost", concerns=lambda alias: alias == "other")
    install_part(console=lambda: PartConsole(rules=(letters_rule,)))
    assert rules_of("default") == RULES
    assert rules_of("other") == (*RULES, letters_rule)


def test_a_section_of_a_part_may_come_first_on_the_dashboard(install_part: Callable[..., None]) -> None:
    install_part(
        console=lambda: PartConsole(sections=(PartSection(name="letters", template="", content=str, after=""),))
    )
    assert [section.name for section in sections()] == ["letters", *(section.name for section in SECTIONS)]


def test_a_part_wraps_each_view_of_the_admin(install_part: Callable[..., None]) -> None:
    models_seen: list[str] = []

    def wrap(model_admin: Any, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        models_seen.append(model_admin.opts.model_name)
        return lambda request: HttpResponse("wrapped")

    install_part(console=lambda: PartConsole(admin_view=wrap))
    views = [pattern.callback for pattern in admin.site.get_model_admin(Job).urls]
    assert models_seen == ["job"] * len(views)
    assert {view(RequestFactory().get("/")).content for view in views} == {b"wrapped"}
