"""Running a finished job again with other arguments."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_skipqueue import job as register
from django_skipqueue.jobs.registry import Registry
from django_skipqueue.models import Job

from ....app.rows import STATUSES, make_job, state
from ..conftest import messages_of, page

pytestmark = pytest.mark.django_db

TASK = "shop.charge"


def charge_card(order: int, /, card: dict[str, Any], *rest: str, note: str = "none", **more: int) -> None:
    """A task with a parameter of each kind."""


def keyed(order: int) -> None:
    """A task whose unique key may raise an error."""


def signed(card: dict[str, Any], config: Any = {"api_key": "the-default"}) -> None:  # noqa: B006
    """A task whose unique key contains a secret."""


def make_key_of_signed(card: dict[str, Any], config: Any = None) -> str:
    if "bad" in card:
        raise ValueError(f"no customer has the token {card['token']}")
    return f"key of {card['token']}"


@pytest.fixture(autouse=True)
def _tasks(registry: Registry) -> None:
    register(name=TASK)(charge_card)
    register(name="shop.keyed", unique_key=lambda order: f"order-{10 // order}")(keyed)
    register(name="shop.signed", unique_key=make_key_of_signed)(signed)


def make_charge_job(status: str = "failed", **fields: Any) -> Job:
    values = {"args": [7], "kwargs": {"card": {"number": "42", "token": "s3cret-1"}}, "task": TASK} | fields
    return make_job(status, **values)


def submit_edit(client: Client, job: Job, *texts: str) -> Any:
    """Submit the form "Run again with other arguments", with one text for each parameter of the task."""
    data = {f"argument_{number}": text for number, text in enumerate(texts)}
    return client.post(page("edit", job.pk), {"confirmed": "yes", **data}, follow=True)


CARD = '{"number": "42", "token": "••••••"}'


def submit_charge(
    client: Client, job: Job, *, order: str = "7", card: str = CARD, rest: str = "", note: str = "", more: str = ""
) -> Any:
    """Submit the form for `charge_card`. An empty text gives no argument."""
    return submit_edit(client, job, order, card, rest, note, more)


class TestTheForm:
    def test_the_form_has_a_field_for_each_parameter_of_the_task(self, operator: Client) -> None:
        job = make_charge_job(args=[7, {"a": 1}, "x", "y"], kwargs={"fee": 3})
        form = operator.get(page("edit", job.pk)).context["form"]
        assert [field.label for field in form] == ["order", "card", "*rest", "note", "**more"]
        assert [json.loads(field.initial or "null") for field in form] == [7, {"a": 1}, ["x", "y"], None, {"fee": 3}]
        assert form.fields["argument_0"].help_text == "int"
        assert form.fields["argument_3"].help_text == "str · left empty: 'none'"
        assert [field.field.required for field in form] == [True, True, False, False, False]

    def test_a_secret_is_never_sent_to_the_browser(self, operator: Client) -> None:
        job = make_charge_job()
        pages = [operator.get(page("edit", job.pk)).text, submit_charge(operator, job, order="x").text]
        for text in pages:
            assert "s3cret-1" not in text
            assert "••••••" in text

    def test_the_button_stands_on_the_page_of_a_finished_job(
        self, operator: Client, log_in: Callable[..., Client]
    ) -> None:
        for status in STATUSES:
            job = make_charge_job(status)
            has_button = page("edit", job.pk) in operator.get(page("change", job.pk)).text
            assert has_button == (status in ("completed", "failed", "discarded"))

    def test_the_form_needs_the_permission_to_add_jobs(self, log_in: Callable[..., Client]) -> None:
        job = make_charge_job()
        client = log_in("view_job", "retry_job")
        assert client.get(page("edit", job.pk)).status_code == 403
        assert submit_charge(client, job).status_code == 403
        assert page("edit", job.pk) not in client.get(page("change", job.pk)).text

    def test_an_unknown_task_cannot_be_edited(self, operator: Client) -> None:
        job = make_charge_job(task="gone.task")
        (message,) = messages_of(operator.get(page("edit", job.pk), follow=True))
        assert message.startswith("This process does not know the task gone.task")
        assert Job.objects.count() == 1

    def test_an_unfinished_job_cannot_be_edited(self, operator: Client) -> None:
        job = make_charge_job("queued")
        (message,) = messages_of(submit_charge(operator, job))
        assert "did nothing" in message


class TestTheNewJob:
    def test_the_new_job_has_the_options_of_the_old_job_and_other_arguments(self, operator: Client) -> None:
        job = make_charge_job(
            queue_name="mail", priority=7, max_attempts=3, timeout=9.5, retention={"failed": 60}, metadata={"a": "b"}
        )
        before = state(job)
        response = submit_charge(operator, job, order="8", rest='["x"]', note='"new"', more='{"fee": 3}')
        new_job = Job.objects.latest("pk")
        assert messages_of(response) == [f"This is job {new_job.pk}, made from job {job.pk} with other arguments."]
        assert (new_job.status, new_job.args) == ("queued", [8, {"number": "42", "token": "s3cret-1"}, "x"])
        assert new_job.kwargs == {"note": "new", "fee": 3}
        for name in ("task", "queue_name", "priority", "max_attempts", "timeout", "retention", "metadata"):
            assert getattr(new_job, name) == getattr(job, name), name
        assert state(job) == before
        entries = dict(LogEntry.objects.values_list("object_id", "change_message"))
        assert entries == {
            str(job.pk): f"Run again with other arguments as job {new_job.pk}.",
            str(new_job.pk): f"Made from job {job.pk} with other arguments.",
        }

    def test_a_form_sent_without_an_edit_keeps_the_arguments(self, operator: Client) -> None:
        job = make_charge_job(args=[7], kwargs={"card": {"token": [1, {"x": "y"}], "n": 1.0}, "fee": 2})
        form = operator.get(page("edit", job.pk)).context["form"]
        submit_edit(operator, job, *(field.initial for field in form))
        new_job = Job.objects.latest("pk")
        assert (new_job.args, new_job.kwargs) == (job.args, job.kwargs)
        assert new_job.pk != job.pk

    @pytest.mark.parametrize(
        ("parameter", "text"),
        [
            ("order", ""),
            ("order", "{"),
            ("order", "NaN"),
            ("order", '"\\u0000"'),
            ("order", "9" * 5000),
            ("order", "[" * 100_000),
            ("order", '"••••••"'),
            ("card", '{"token": "••••••", "password": "••••••"}'),
            ("card", '["••••••"]'),
        ],
    )
    def test_an_invalid_value_is_an_error_of_its_field(self, operator: Client, parameter: str, text: str) -> None:
        response = submit_charge(operator, make_charge_job(), **{parameter: text})
        assert list(response.context["form"].errors) == [{"order": "argument_0", "card": "argument_1"}[parameter]]
        assert Job.objects.count() == 1

    @pytest.mark.parametrize("rest", ["7", '{"a": 1}'])
    def test_surplus_arguments_must_be_a_list_or_an_object(self, operator: Client, rest: str) -> None:
        assert "*rest must be a list." in submit_charge(operator, make_charge_job(), rest=rest).text
        assert "**more must be an object." in submit_charge(operator, make_charge_job(), more="[]").text

    def test_the_size_of_arguments_is_limited_by_the_setting(self, operator: Client, settings: Any) -> None:
        settings.SKIPQUEUE = {"MAX_ARGUMENT_BYTES": 100}
        text = submit_charge(operator, make_charge_job(), note=json.dumps("x" * 100)).text
        assert "MAX_ARGUMENT_BYTES" in text
        assert Job.objects.count() == 1

    def test_no_job_is_made_while_another_job_holds_its_unique_key(self, operator: Client) -> None:
        holder = make_charge_job("queued", unique_key="k")
        job = make_charge_job(unique_key="k")
        text = submit_charge(operator, job, order="8").text
        assert f"because job {holder.pk}, which is " in text
        assert Job.objects.count() == 2

    def test_the_unique_key_is_computed_from_the_new_arguments(self, operator: Client) -> None:
        job = make_charge_job(task="shop.keyed", args=[1], kwargs={}, unique_key="order-10")
        assert "division" in submit_edit(operator, job, "0").text
        submit_edit(operator, job, "5")
        assert Job.objects.latest("pk").unique_key == "order-2"


class TestSecrets:
    def test_no_secret_is_in_the_error_of_a_unique_key(self, operator: Client) -> None:
        job = make_charge_job(task="shop.signed", args=[], unique_key=None)
        text = submit_edit(operator, job, '{"bad": 1, "token": "••••••"}', "").text
        assert "no customer has the token ••••••" in text
        assert "s3cret-1" not in text

    def test_no_secret_is_in_the_message_about_a_held_unique_key(self, operator: Client) -> None:
        job = make_charge_job(task="shop.signed", args=[], kwargs={"card": {"token": "s3cret-1"}}, unique_key=None)
        columns_of_holder = {"unique_key": "key of s3cret-1", "kwargs": {"card": {"token": "s3cret-1"}}}
        make_charge_job("queued", task="shop.signed", args=[], **columns_of_holder)
        text = submit_edit(operator, job, '{"token": "••••••"}', "").text
        assert "holds the unique key “key of ••••••”" in text
        assert "s3cret-1" not in text

    def test_no_secret_default_is_shown(self, operator: Client) -> None:
        job = make_charge_job(task="shop.signed", args=[], unique_key=None)
        assert "the-default" not in operator.get(page("edit", job.pk)).text


def test_a_masked_secret_in_a_list_is_restored_if_its_item_is_unchanged(operator: Client) -> None:
    cards = [{"id": 1, "token": "first-secret"}, {"id": 2, "token": "other-secret"}]
    job = make_charge_job(kwargs={"card": cards})
    masked_cards = [{"id": 1, "token": "••••••"}, {"id": 2, "token": "••••••"}]
    response_to_swapped_cards = submit_charge(operator, job, card=json.dumps(masked_cards[::-1]))
    assert list(response_to_swapped_cards.context["form"].errors) == ["argument_1"]
    submit_charge(operator, job, card=json.dumps([masked_cards[0], {"id": 3, "token": "typed"}]))
    assert Job.objects.latest("pk").kwargs["card"] == [cards[0], {"id": 3, "token": "typed"}]
