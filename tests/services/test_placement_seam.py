"""What a part can change for several databases, tried with parts of this test."""

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

BOTH = ("default", "other")


@pytest.fixture(autouse=True)
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs one part in place of all others. Until it is called, no part is installed."""
    monkeypatch.setattr(parts, "_installed", {})
    before = [*parts.placements_of_parts]
    parts.placements_of_parts.clear()
    yield lambda **given: install_parts([Part(name="mail", **given)])
    parts.placements_of_parts[:] = before


class Odd(Placement):
    """Places calls with an odd number in another database."""

    def choose(self, spec: JobSpec, call: EncodedCall, *, named: str | None = None, shard: str | None = None) -> str:
        return BOTH[int(call.args[1]) % 2]

    def choose_many(
        self, spec: JobSpec, calls: Sequence[EncodedCall], *, named: str | None = None, shards: Sequence[str | None]
    ) -> list[str]:
        return [self.choose(spec, call) for call in calls]


def test_without_a_part_jobs_are_in_the_database_of_their_options_or_of_the_settings(settings: Any) -> None:
    assert noop.defer()._state.db == "default"
    assert noop.using(database="other").defer_many([(), ()]).databases == ["other"] * 2
    settings.SKIPQUEUE = {"DATABASE": "other"}
    assert noop.defer()._state.db == "other"
    assert [Job.objects.using(alias).count() for alias in BOTH] == [1, 3]


def test_a_part_chooses_for_each_job(install: Callable[..., None]) -> None:
    install(placement=Odd())
    assert [add.defer(number)._state.db for number in range(3)] == ["default", "other", "default"]
    assert add.defer_many([(3,), (4,)]).databases == ["other", "default"]


def test_one_command_serves_several_databases_if_a_part_can(install: Callable[..., None]) -> None:
    given = {"database": "default, other"}
    assert run.databases_of(given) == ("default, other",)
    asked: list[Any] = []

    def run_all(workers: Sequence[WorkerOptions], **options: Any) -> int:
        asked.extend([each.database for each in workers])
        return 7

    install(run_supervisors=run_all)
    assert run.databases_of(given) == BOTH
    with pytest.raises(SystemExit, match="7"):
        run.run([WorkerOptions(name=alias, database=alias) for alias in BOTH], lifeline=None, listener=None)
    assert asked == ["default", "other"]


def test_a_check_of_the_doctor_may_concern_some_databases(install: Callable[..., None]) -> None:
    found = Rule("letters", lambda _: (), "No letter is lost", concerns=lambda alias: alias == "other")
    install(console=lambda: PartConsole(rules=(found,)))
    assert rules_of("default") == RULES
    assert rules_of("other") == (*RULES, found)


def test_a_section_of_the_dashboard_may_stand_before_all(install: Callable[..., None]) -> None:
    install(console=lambda: PartConsole(sections=(PartSection(name="letters", template="", content=str, after=""),)))
    assert [each.name for each in sections()] == ["letters", *(each.name for each in SECTIONS)]


def test_a_part_wraps_each_view_of_the_admin(install: Callable[..., None]) -> None:
    seen: list[str] = []

    def wrap(model_admin: Any, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        seen.append(model_admin.opts.model_name)
        return lambda request: HttpResponse("wrapped")

    install(console=lambda: PartConsole(admin_view=wrap))
    views = [pattern.callback for pattern in admin.site.get_model_admin(Job).urls]
    assert seen == ["job"] * len(views)
    assert {view(RequestFactory().get("/")).content for view in views} == {b"wrapped"}
