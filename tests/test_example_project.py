"""The shop of the example project takes payments and mails receipts once, and its demo prints the right figures."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
from django.core.management import call_command
from django.db import transaction
from django.db.models import F, Sum

from django_skipqueue.models import Job
from django_skipqueue.parts.schedules.entry import all_entries
from django_skipqueue.testing import assert_deferred, assert_not_deferred, run_inline, run_jobs
from payments.forms import PaymentForm
from payments.jobs import daily_summary, report_to_bank, send_receipt, summarize_customer, write_statement
from payments.mailbox import Mailbox, amount_paid
from payments.management.commands.customers import come_in
from payments.models import BlockedAddress, EmailDelivery, Payment, PaymentLine, StatementLine
from payments.receipts import receipt_email
from payments.tasks import HAS_TASKS
from payments.views import SUMMARY_DELAY, take_payment

from .app.waiting import wait_until

MANAGE = Path(__file__).resolve().parent.parent / "example_project" / "manage.py"
YEARS_PAID = re.compile(r"Paid    2021 \$(\S+), 2022 \$(\S+), 2023 \$(\S+), 2024 \$(\S+), 2025 \$(\S+); by a @task")
SPEED = re.compile(r"Speed   [\d,]+ empty jobs a second on one worker process; the receipts took [\d.]+ s")
ORDER = {"customer_name": "Bjørn Hansen", "email": "bjorn@hansen.example", "track": "0"}

pytestmark = pytest.mark.urls("shop.urls")


@pytest.fixture
def payment(db: None) -> Payment:
    return make_payment()


@pytest.fixture
def mailbox(settings: Any, tmp_path: Path) -> Mailbox:
    """The folder into which mails of this test are written."""
    settings.EMAIL_BACKEND = "payments.mailbox.MailboxBackend"
    settings.EMAIL_FILE_PATH = str(tmp_path / "mailbox")
    return Mailbox()


def make_payment(reference: str = "0001", **values: Any) -> Payment:
    values = {"customer_name": "Leonie Köhler", "email": "leonie@koehler.example", "total": "1.98", **values}
    payment = Payment.objects.create(reference=reference, paid_on=date(2021, 1, 1), **values)
    PaymentLine.objects.create(
        payment=payment, position=1, track="L'Été", artist="Vivaldi & Söhne", unit_price="0.99", quantity=2
    )
    payment.refresh_from_db()
    return payment


class TestTakingAPayment:
    def test_taking_a_payment_saves_it_and_defers_its_receipt(self, db: None, client: Any) -> None:
        assert client.post("/", ORDER).status_code == 302

        payment = Payment.objects.get()
        assert payment.total == sum(line.unit_price * line.quantity for line in payment.lines.all())
        assert_deferred(send_receipt, payment_id=payment.pk, count=1)
        assert_deferred(write_statement, email=payment.email, payment_id=payment.pk, count=1)
        assert_deferred(summarize_customer, email=payment.email, run_after=SUMMARY_DELAY, count=1)

    def test_a_rollback_leaves_neither_payment_nor_job(self, db: None) -> None:
        form = PaymentForm(ORDER)
        assert form.is_valid()
        with transaction.atomic():
            take_payment(form)
            transaction.set_rollback(True)

        assert not Payment.objects.exists()
        assert_not_deferred()

    def test_a_payment_is_not_saved_if_its_job_cannot_be_deferred(
        self, db: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        form = PaymentForm(ORDER)
        assert form.is_valid()
        monkeypatch.setattr(send_receipt, "defer", lambda payment_id: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take_payment(form)

        assert not Payment.objects.exists()

    def test_a_wrong_address_is_refused(self, db: None, client: Any) -> None:
        assert b"Enter a valid email address" in client.post("/", {**ORDER, "email": "nowhere"}).content
        assert_not_deferred()

    def test_the_page_shows_the_state_of_each_receipt(self, db: None, client: Any) -> None:
        for reference, email in [("0001", "a@sent.example"), ("0002", "b@blocked.example"), ("0003", "c@new.example")]:
            make_payment(reference, email=email)
        send_receipt(Payment.objects.get(reference="0001").pk)
        BlockedAddress.objects.create(address="B@blocked.example")

        rows = re.findall(r"<td>(000\d)</td>.*?<span class=\"(\w+)\">", client.get("/").content.decode(), re.DOTALL)
        assert dict(rows) == {"0001": "sent", "0002": "blocked", "0003": "waiting"}


class TestSendReceipt:
    def test_a_receipt_is_sent_once_however_often_its_job_runs(self, payment: Payment, mailoutbox: list[Any]) -> None:
        for _ in range(2):
            assert send_receipt(payment.pk) == payment.email

        assert len(mailoutbox) == 1
        assert EmailDelivery.objects.get().payment == payment

    def test_a_receipt_is_sent_once_if_two_jobs_run_at_the_same_time(
        self, session: Any, transactional_db: None, mailoutbox: list[Any]
    ) -> None:
        payment = make_payment()
        first_session, second_session = session(), session()
        first_session.begin()
        first_session(send_receipt, payment.pk)
        second_result = second_session.start(send_receipt, payment.pk)
        second_session.wait_until_blocked()
        first_session.commit()

        assert second_result.result() == payment.email
        assert len(mailoutbox) == 1

    def test_a_receipt_is_sent_again_if_the_first_run_was_rolled_back(
        self, session: Any, transactional_db: None, mailoutbox: list[Any]
    ) -> None:
        payment = make_payment()
        crashed_session = session()
        crashed_session.begin()
        crashed_session(send_receipt, payment.pk)
        crashed_session.rollback()
        send_receipt(payment.pk)

        assert [mail.message()["Message-ID"] for mail in mailoutbox] == ["<receipt-0001@chinook.example>"] * 2
        assert EmailDelivery.objects.count() == 1

    def test_a_receipt_that_a_busy_mail_server_refuses_is_sent_at_the_second_attempt(
        self, db: None, mailbox: Mailbox, settings: Any
    ) -> None:
        settings.EMAIL_BACKEND = "payments.mailbox.BusyMailboxBackend"
        for number in range(30):
            send_receipt.defer(payment_id=make_payment(f"{number:04}").pk)

        run_jobs(include_scheduled=True)
        retried_jobs = Job.objects.filter(attempts=2)
        assert 0 < retried_jobs.count() == mailbox.refusals() < 10
        assert all("The mail server is busy" in job.errors[0]["message"] for job in retried_jobs)
        assert Job.objects.completed().count() == EmailDelivery.objects.count() == 30
        assert len(list(mailbox.receipts())) == 30

    def test_a_blocked_address_fails_at_once_until_it_is_taken_off_the_list_and_retried(
        self, payment: Payment, mailoutbox: list[Any]
    ) -> None:
        blocked_address = BlockedAddress.objects.create(address=payment.email, reason="the mailbox is full")
        send_receipt.defer(payment_id=payment.pk)
        [job] = run_jobs()
        assert (job.status, job.attempts) == ("failed", 1)
        assert job.last_error == f"AddressBlocked: {payment.email} is blocked: the mailbox is full"
        assert not mailoutbox

        blocked_address.delete()
        assert job.retry()
        [job] = run_jobs()
        assert job.status == "completed"
        assert [mail.to for mail in mailoutbox] == [[f'"Leonie Köhler" <{payment.email}>']]


class TestStatements:
    """The statements of a customer are written one after the other, in a sequence for each customer."""

    def test_each_line_of_a_statement_has_the_total_so_far(self, db: None) -> None:
        purchases = [("a@x.example", "1.00"), ("b@x.example", "5.00"), ("a@x.example", "2.50")]
        for number, (email, total) in enumerate(purchases):
            payment = make_payment(f"{number:04}", email=email, total=total)
            write_statement.defer(email=email, payment_id=payment.pk)
        assert {job.result for job in run_jobs()} == {
            "a@x.example has paid $1.00", "b@x.example has paid $5.00", "a@x.example has paid $3.50",
        }  # fmt: skip
        assert [str(line.total_paid) for line in StatementLine.objects.filter(payment__email="a@x.example")] == [
            "1.00", "3.50",
        ]  # fmt: skip

    def test_a_statement_that_is_written_again_adds_no_line(self, payment: Payment) -> None:
        for _ in range(2):
            assert write_statement(payment.email, payment.pk) == f"{payment.email} has paid $1.98"
        assert StatementLine.objects.count() == 1

    def test_a_failed_statement_blocks_the_next_ones_of_its_customer_alone(self, db: None) -> None:
        first_payment = make_payment("0001", email="a@x.example")
        second_payment = make_payment("0002", email="a@x.example")
        other_payment = make_payment("0003", email="b@x.example")
        failing_job = write_statement.using(max_attempts=1).defer(email="a@x.example", payment_id=-1)
        for payment in (first_payment, second_payment, other_payment):
            write_statement.defer(email=payment.email, payment_id=payment.pk)
        run_jobs()
        assert dict(Job.objects.values_list("kwargs__payment_id", "status")) == {
            -1: "failed", first_payment.pk: "blocked", second_payment.pk: "blocked", other_payment.pk: "completed",
        }  # fmt: skip

        failing_job.refresh_from_db()
        assert failing_job.discard()
        run_jobs()
        assert not Job.objects.blocked().exists()
        assert str(StatementLine.objects.get(payment=second_payment).total_paid) == "3.96"


def test_a_summary_is_made_once_after_the_last_payment(db: None, client: Any) -> None:
    for _ in range(3):
        client.post("/", ORDER)
    [job] = assert_deferred(summarize_customer, email=ORDER["email"], count=1)
    assert job.status == "scheduled"
    run_jobs(include_scheduled=True)
    job.refresh_from_db()
    assert job.result == "bjorn@hansen.example: 3 payments, $2.97"


def test_two_messages_of_one_account_may_go_to_the_bank_at_the_same_time(
    payment: Payment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("payments.jobs.time.sleep", lambda seconds: None)
    bank_jobs = [report_to_bank.defer(account=name, payment_id=payment.pk) for name in ("shop", "shop", "festival")]
    assert {(job.limit_key, job.capacity) for job in bank_jobs} == {
        ('limit:payments.jobs.report_to_bank account="shop"', 2),
        ('limit:payments.jobs.report_to_bank account="festival"', 2),
    }
    assert {job.status for job in run_jobs()} == {"completed"}


def test_run_inline_runs_all_jobs_of_a_payment_at_once(db: None, client: Any, mailoutbox: list[Any]) -> None:
    with run_inline():
        client.post("/", ORDER)
    assert len(mailoutbox) == 1
    assert StatementLine.objects.get().total_paid == Decimal("0.99")


class TestReceipts:
    def test_a_receipt_says_what_was_bought_and_paid(self, payment: Payment) -> None:
        body = receipt_email(payment).body
        assert "Dear Leonie Köhler," in body
        assert "2 x $0.99  L'Été (Vivaldi & Söhne)" in body
        assert "Total paid: $1.98" in body

    @pytest.mark.parametrize(
        ("name", "email"),
        [
            ("Leonie Köhler", "leonie@koehler.example"),
            ("Hugh O'Reilly", "hugh@oreilly.example"),
            ('Roberto "Beto" Almeida, Jr.', "beto@almeida.example"),
            ("Stanisław Wójcik", "stanisław.wójcik@wojcik.example"),
        ],
    )
    def test_a_receipt_is_read_from_the_mailbox_as_it_was_sent(
        self, db: None, mailbox: Mailbox, name: str, email: str
    ) -> None:
        receipt_email(make_payment(customer_name=name, email=email, total="13.86")).send()

        [mail] = mailbox.receipts()
        [address] = mail["To"].addresses
        assert (address.display_name, address.addr_spec) == (name, email)
        assert f"Dear {name}," in mail.get_content()
        assert amount_paid(mail) == Decimal("13.86")

    def test_the_mailbox_keeps_a_receipt_for_each_time_it_is_sent(self, payment: Payment, mailbox: Mailbox) -> None:
        for _ in range(2):
            receipt_email(payment).send()
        assert len(list(mailbox.receipts())) == 2

        (mailbox.folder / "letter.eml").touch()
        mailbox.clear()
        assert [path.name for path in mailbox.folder.glob("*.eml")] == ["letter.eml"]


def test_importing_the_invoices_twice_makes_no_payment_twice(db: None) -> None:
    for _ in range(2):
        call_command("import_invoices", verbosity=0)

    assert Payment.objects.count() == 412
    assert PaymentLine.objects.count() == 2240
    assert Payment.objects.aggregate(total=Sum("total")) == {"total": Decimal("2328.60")}
    lines = Payment.objects.annotate(lines_total=Sum(F("lines__unit_price") * F("lines__quantity")))
    assert not lines.exclude(total=F("lines_total")).exists()


@pytest.fixture
def server_url() -> Iterator[str]:
    """The URL of a new, empty database."""
    server = os.environ["DATABASE_URL"]
    name = f"example_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


FIGURES = """
  receipts sent      410   $2,288.88   counted from the mails in the mailbox
    after a retry     28               the mail server was busy at the first attempt
  failed               2      $39.72
    0404                     $25.86   AddressBlocked: office@ledger-and-sons.example is blocked: the mailbox is full
    0411                     $13.86   AddressBlocked: invoices@zaehlwerk.example is blocked: the mailbox is full
  together           412   $2,328.60   of 412 payments, $2,328.60
"""
"""The figures of the receipts that the demo prints."""


class TestDemo:
    """`manage.py demo` runs on a new database."""

    @pytest.mark.slow  # `make check` runs the demo
    @pytest.mark.timeout(300)
    def test_every_receipt_is_sent_or_accounted_for_in_each_run(self, server_url: str, tmp_path: Path) -> None:
        environment = {**os.environ, "DATABASE_URL": server_url, "EMAIL_FILE_PATH": str(tmp_path)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        for _ in range(2):
            process = subprocess.run([sys.executable, MANAGE, "demo"], env=environment, capture_output=True, text=True)
            assert process.returncode == 0, process.stderr
            assert FIGURES in process.stdout
            assert "  Batch   410 sent, 2 failed, says the job" in process.stdout
            assert "make serve" in process.stdout
            assert SPEED.search(process.stdout)
            years_paid = YEARS_PAID.search(process.stdout)
            assert (years_paid is not None) == HAS_TASKS
            assert years_paid is None or sum(map(Decimal, years_paid.groups())) == Decimal("2328.60")

        receipts = list(Mailbox(tmp_path).receipts())
        assert len({mail["Message-ID"] for mail in receipts}) == len(receipts) == 410
        with psycopg.connect(server_url) as connection:
            assert dict(connection.execute("SELECT status, count(*) FROM skipqueue_job GROUP BY status")) == {
                "completed": 410 + 1 + HAS_TASKS,
                "failed": 2,
            }


class TestServe:
    """`manage.py serve` runs the shop with invented customers, whose jobs the admin shows."""

    def test_customers_leave_jobs_of_all_kinds_that_run(
        self, db: None, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("payments.jobs.time.sleep", lambda seconds: None)
        for number in range(25):
            come_in(number)
        tasks_with_statuses = set(Job.objects.values_list("task", "status"))
        assert tasks_with_statuses == {
            ("payments.jobs.send_receipt", "queued"),
            ("payments.jobs.fetch_exchange_rates", "queued"),
            ("payments.jobs.print_catalogue", "queued"),
            ("payments.jobs.ask_for_review", "scheduled"),
            ("payments.jobs.summarize_customer", "scheduled"),
            ("payments.jobs.report_to_bank", "blocked"),
            ("payments.jobs.write_statement", "blocked"),
        }
        Job.objects.filter(task="payments.jobs.print_catalogue").update(kwargs={"pages": 0})
        run_jobs(include_scheduled=True)
        other_jobs = Job.objects.exclude(task="payments.jobs.fetch_exchange_rates")
        assert set(other_jobs.values_list("status", flat=True)) == {"completed"}

    def test_serve_runs_customers_jobs_until_ctrl_c_stops_all_its_processes(
        self, server_url: str, tmp_path: Path
    ) -> None:
        environment = {**os.environ, "DATABASE_URL": server_url, "EMAIL_FILE_PATH": str(tmp_path)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        with socket.socket() as free_socket:
            free_socket.bind(("127.0.0.1", 0))
            port = str(free_socket.getsockname()[1])
        serve_process = subprocess.Popen(
            [sys.executable, MANAGE, "serve", "--port", port],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: completed(server_url) >= 2, "customers' jobs are run", deadline=60)
            children = psutil.Process(serve_process.pid).children(recursive=True)
            assert len(children) >= 3
            serve_process.send_signal(signal.SIGINT)
            assert serve_process.wait(60) == 0
            wait_until(lambda: not any(process.is_running() for process in children), "nothing is left")
        finally:
            serve_process.kill()
            serve_process.wait()


def completed(url: str) -> int:
    """The number of completed jobs; 0 if the job table does not exist yet."""
    with psycopg.connect(url) as connection:
        if connection.execute("SELECT to_regclass('skipqueue_job')").fetchone() == (None,):
            return 0
        row = connection.execute("SELECT count(*) FROM skipqueue_job WHERE status = 'completed'").fetchone()
        assert row is not None
        return int(row[0])


def test_the_daily_summary_has_a_schedule(db: None) -> None:
    entries_by_name = {entry.name: entry for entry in all_entries()[0]}
    entry = entries_by_name["payments.jobs.daily_summary"]
    assert (entry.cron, entry.timezone) == ("0 9 * * mon-fri", "Europe/Berlin")
    assert daily_summary() == "0 payments, $0.00, 0 receipts sent"
