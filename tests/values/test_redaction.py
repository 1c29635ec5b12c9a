"""`redaction`: which arguments are masked because they are secrets, in every place that shows a job."""

import json
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
from django.test import Client

from django_skipqueue import job
from django_skipqueue.events.events import AttemptsEnded
from django_skipqueue.events.sinks import send
from django_skipqueue.exceptions import InvalidOption
from django_skipqueue.jobs.registry import registry
from django_skipqueue.models import Job
from django_skipqueue.testing import run_jobs
from django_skipqueue.values.records import ClaimedJob
from django_skipqueue.values.redaction import DEEPEST, MASK, SECRETS, redact, words
from django_skipqueue.worker.attempts.executor import Executor
from django_skipqueue.worker.attempts.running_attempt import RunningAttempt

from ..app.rows import make_job
from ..console.admin.conftest import LIST, log_in, operator, page  # noqa: F401 (fixtures)

SECRET = "hunter22-correct-horse"


def is_masked(name: str, **options: Any) -> bool:
    return redact(kwargs={name: SECRET}, **options).kwargs == {name: MASK}


class TestNames:
    def test_arguments_with_the_name_of_a_secret_are_masked_in_any_spelling(self, subtests: pytest.Subtests) -> None:
        forms: list[Callable[[str], str]] = [str, str.upper, str.title, "my_{}".format, "{}_value".format, "{}2".format]
        for name, respell in product(SECRETS, forms):
            with subtests.test(name=name, respell=respell):
                assert is_masked(respell(name))
                assert is_masked(respell(name.replace("_", "-")))

    def test_names_in_camel_case_or_with_separators_are_recognised_as_secrets(self, subtests: pytest.Subtests) -> None:
        names = [
            "accessToken", "stripeApiKey", "stripeAPIKey", "APIKey", "X-Authorization", "oauth2Token", "HTTPToken",
            "data.password", "token[0]", "clientSecretV2", "passWord", "smtp_pass", "awsAccessKey", "ssh-private-key",
            "DATABASE_DSN", "sessionId", "db_credentials", "PWD", "bearer", "jwt",
        ]  # fmt: skip
        for name in names:
            with subtests.test(name):
                assert is_masked(name)

    def test_names_that_only_resemble_a_secret_are_not_masked(self, subtests: pytest.Subtests) -> None:
        names = [
            "tokens_used", "max_tokens", "tokenizer", "secretary", "passwordless", "key", "api", "keyApi", "", "_",
            "passed", "passenger", "card", "session", "keyboard", "public_key", "cookiecutter",
        ]  # fmt: skip
        for name in names:
            with subtests.test(name):
                assert not is_masked(name)

    def test_names_given_by_the_project_are_masked_too(self) -> None:
        assert is_masked("cardNumber", also=["card"])
        assert is_masked("номер_карты", also=["карты"])
        assert not is_masked("discard", also=["card"])
        assert not is_masked("card")

    def test_names_are_split_into_lower_case_words(self) -> None:
        assert (
            words("stripeAPIKey_v2-Größe")
            == words("stripe-api-key_v3_größe")
            == words("STRIPE_API_KEY_V2") + words("größe")
        )

    def test_redacting_megabytes_of_names_takes_less_than_ten_seconds(self) -> None:
        started_at = time.perf_counter()
        redact(kwargs={"<b>" * 300_000: 1} | {f"a{number}": 1 for number in range(100_000)})
        assert time.perf_counter() - started_at < 10


class TestValues:
    def test_a_secret_is_masked_completely_at_any_depth(self) -> None:
        masked = redact([[{"token": {"a": [1]}}, 2]], {"user": {"login": "ada", "accounts": [{"password": SECRET}]}})
        assert masked.args == [[{"token": MASK}, 2]]
        assert masked.kwargs == {"user": {"login": "ada", "accounts": [{"password": MASK}]}}

    def test_positional_arguments_are_masked_by_the_names_of_their_parameters(self) -> None:
        assert redact(["ada", SECRET, "x"], names=["login", "password"]).args == ["ada", MASK, "x"]

    def test_a_secret_of_any_type_but_none_is_masked(self, subtests: pytest.Subtests) -> None:
        cases: list[Any] = ["", 0, False, 1.5, [], {}, "x", [SECRET], {"a": 1}]
        for value in cases:
            with subtests.test(value=value):
                assert redact(kwargs={"token": value}).kwargs == {"token": MASK}
                assert redact(kwargs={"token": None}).kwargs == {"token": None}

    def test_redact_does_not_change_the_given_arguments(self) -> None:
        args, kwargs = [{"token": SECRET}], {"password": SECRET}
        redact(args, kwargs)
        assert (args, kwargs) == ([{"token": SECRET}], {"password": SECRET})

    def test_a_value_nested_too_deeply_is_cut_off_and_its_secrets_are_masked_in_texts(self) -> None:
        value: Any = {"token": SECRET}
        for _ in range(5_000):
            value = [value]
        masked = redact(kwargs={"a": value})
        assert str(masked.kwargs).count("[") == DEEPEST
        assert masked.text(f"no {SECRET}!") == f"no {MASK}!"

    def test_the_values_of_secrets_are_masked_in_other_texts_unless_they_are_short(self) -> None:
        masked = redact(
            kwargs={"token": [SECRET, 1234567], "password": SECRET + SECRET, "api_key": "short", "a": "plain-a"}
        )
        assert masked.text(f"{SECRET}{SECRET} {SECRET} 1234567 short plain-a") == f"{MASK} {MASK} {MASK} short plain-a"

    def test_secrets_are_masked_in_texts_written_by_repr_or_json(self, subtests: pytest.Subtests) -> None:
        secrets = ["pa\"ss\\word'", "it's-a-secret", "-----KEY-----\nabcdef\n", "größe\tüber"]
        writers: list[Callable[[Any], str]] = [repr, json.dumps, partial(json.dumps, ensure_ascii=False)]
        parts_of_secrets = ("pa", "secret", "KEY", "abcdef", "größe", "gr\\u00f6", "ber")
        for secret, writer in product(secrets, writers):
            with subtests.test(secret=secret, written=writer):
                masked = redact(kwargs={"token": secret})
                for value_with_secret in ({"data": secret}, f"no {secret} \" '"):
                    masked_text = masked.text(writer(value_with_secret))
                    assert masked_text.count(MASK) == 1
                    assert not any(part in masked_text for part in parts_of_secrets)


def charge_card(login: str, password: str, *card: str, **more: Any) -> None:
    """A function whose error contains its secrets."""
    raise ValueError(f"{login}: no {password}, {card[0]}, {more}")


@pytest.fixture
def forget_tasks() -> Iterator[None]:
    """Remove the tasks that a test has registered."""
    tasks_before = dict(registry.by_name)
    yield
    registry.by_name.clear()
    registry.by_name.update(tasks_before)


@pytest.fixture
def charge_task(forget_tasks: None) -> Any:
    """`charge_card` as a task whose parameter `card` is a secret."""
    return job(redact=("card",), max_attempts=1)(charge_card)


class TestRedactOption:
    def test_using_keeps_the_redact_option_of_a_task(self, charge_task: Any) -> None:
        assert charge_task.redact == charge_task.using(priority=1).redact == ("card",)

    def test_redact_takes_a_single_name(self, forget_tasks: None) -> None:
        assert job(redact="card")(charge_card).redact == ("card",)

    def test_redact_refuses_a_value_that_is_not_a_name(self, forget_tasks: None, subtests: pytest.Subtests) -> None:
        cases: list[Any] = [None, 1, [1], [""], ["42"], {"card"}, ("card", "-")]
        for names in cases:
            with subtests.test(names=names), pytest.raises(InvalidOption, match="redact must be a tuple of names"):
                job(redact=names)(charge_card)


POSITIONAL_ARGUMENTS = ["ada-lovelace", f"p-{SECRET}", f"c-{SECRET}"]
KEYWORD_ARGUMENTS = {
    "card_number": f"n-{SECRET}",
    "deep": [{"iban": f"i-{SECRET}", "accessToken": f"t-{SECRET}"}],
    "note": "plain",
}


@pytest.mark.django_db(transaction=True)
class TestPlacesThatShowAJob:
    """Logs, pages of the admin and searches. The name `iban` is a secret by the settings of the project."""

    @pytest.fixture(autouse=True)
    def _iban_is_a_secret(self, settings: Any) -> None:
        settings.SKIPQUEUE = {"REDACT": ["iban"]}

    @pytest.fixture
    def failed_job(self, charge_task: Any) -> Job:
        """A failed job of the task, called with secrets."""
        job = charge_task.defer(*POSITIONAL_ARGUMENTS, **KEYWORD_ARGUMENTS)
        run_jobs()
        return Job.objects.failed().get(pk=job.pk)

    def test_the_row_has_the_arguments_but_no_error_with_secrets(self, failed_job: Job) -> None:
        assert (failed_job.args, failed_job.kwargs) == (POSITIONAL_ARGUMENTS, KEYWORD_ARGUMENTS)
        stored_errors = failed_job.last_error + json.dumps(failed_job.errors)
        assert SECRET not in stored_errors
        assert "ada-lovelace" in stored_errors
        assert MASK in failed_job.last_error

    def test_no_log_record_contains_the_secrets(self, charge_task: Any, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, logger="django_skipqueue")
        args, kwargs = json.dumps(POSITIONAL_ARGUMENTS), json.dumps(KEYWORD_ARGUMENTS)
        attempt = Executor(worker="w", database="default").execute(
            RunningAttempt(
                ClaimedJob(
                    id=7, lease=1, task=charge_task.name, queue_name="default", args=args, kwargs=kwargs,
                    attempt=1, max_attempts=1, priority=0, run_after=0.0, locked_at=0.0, metadata="{}",
                )
            )
        )  # fmt: skip
        event_classes = AttemptsEnded.__subclasses__()
        for event_class in event_classes:
            send(event_class([attempt]))
        assert len(caplog.records) == len(event_classes) + 1, "one record of each event, and one of the start"
        assert "ada-lovelace: no" in caplog.text
        assert SECRET not in caplog.text
        assert SECRET not in str([vars(record) for record in caplog.records])

    def test_no_page_of_the_admin_shows_the_secrets(self, failed_job: Job, operator: Client) -> None:  # noqa: F811
        # Write secrets into the other columns: errors, the result, the metadata and the unique key.
        entry = {
            "attempt": 1,
            "exception": "x.Y",
            "message": f"a {POSITIONAL_ARGUMENTS[1]}",
            "traceback": f"b {POSITIONAL_ARGUMENTS[2]}",
        }
        columns: dict[str, Any] = {
            "last_error": f"c {POSITIONAL_ARGUMENTS[1]}",
            "errors": [entry],
            "unique_key": f"d {POSITIONAL_ARGUMENTS[2]}",
        }
        columns |= {"result": {"token": SECRET}, "metadata": {"api_key": SECRET}}
        for status in ("failed", "completed", "discarded"):
            Job.objects.filter(pk=failed_job.pk).update(**columns, status=status)
            addresses = [
                LIST,
                f"{LIST}?q=charge",
                *(page(name, failed_job.pk) for name in ("change", "delete", "history")),
            ]
            pages = [operator.get(address).text for address in addresses]
            assert "ada-lovelace" in pages[0]
            assert "a ••••••" in pages[2]
            assert "hides a value whose name marks it as secret" in pages[2]
            assert not [address for address, text in zip(addresses, pages, strict=True) if SECRET in text]

    def test_no_message_of_the_admin_contains_a_unique_key_with_a_secret(
        self,
        failed_job: Job,
        operator: Client,  # noqa: F811
    ) -> None:
        Job.objects.filter(pk=failed_job.pk).update(unique_key=POSITIONAL_ARGUMENTS[1])
        make_job("queued", unique_key=POSITIONAL_ARGUMENTS[1])
        text = operator.post(page("retry", failed_job.pk), follow=True).text
        assert "holds the unique key" in text
        assert SECRET not in text

    def test_the_list_masks_secrets_that_are_longer_than_the_shown_text(self, operator: Client) -> None:  # noqa: F811
        make_job(kwargs={"a": "x", "password": SECRET * 100})
        make_job(kwargs={"password": {"a": SECRET * 100}})
        text = operator.get(LIST).text
        assert text.count(f"password=&quot;{MASK}&quot;") == 4, "in the cells, and in their titles"
        assert SECRET not in text

    @pytest.mark.parametrize(
        "search",
        [
            f"card_number={KEYWORD_ARGUMENTS['card_number']}",
            f"password={POSITIONAL_ARGUMENTS[1]}",
            f'"deep=[{{\\"iban\\":\\"i-{SECRET}\\"}}]"',
            f'"deep=[{{\\"accessToken\\":\\"t-{SECRET}\\"}}]"',
        ],
    )
    def test_a_search_for_the_right_secret_finds_nothing(
        self,
        charge_task: Any,
        operator: Client,  # noqa: F811
        search: str,
    ) -> None:
        charge_task.defer(*POSITIONAL_ARGUMENTS, **KEYWORD_ARGUMENTS)
        make_job(kwargs={"password": POSITIONAL_ARGUMENTS[1], "deep": KEYWORD_ARGUMENTS["deep"]})
        assert not operator.get(LIST, {"q": search}).context["cl"].result_list
        assert len(operator.get(LIST, {"q": "note=plain"}).context["cl"].result_list) == 1

    def test_a_secret_of_one_task_can_be_searched_in_jobs_of_other_tasks(
        self,
        charge_task: Any,
        operator: Client,  # noqa: F811
    ) -> None:
        charge_task.defer("a", "b", "c", card="visa")
        other_job = make_job(kwargs={"card": "visa"})
        assert [job.pk for job in operator.get(LIST, {"q": "card=visa"}).context["cl"].result_list] == [other_job.pk]

    def test_secrets_of_an_unregistered_task_are_masked_by_their_names(self, operator: Client) -> None:  # noqa: F811
        job = make_job(task="gone.jobs.away", args=[{"token": SECRET}], kwargs={"iban": SECRET, "a": 1})
        for address in (LIST, page("change", job.pk)):
            assert SECRET not in operator.get(address).text
