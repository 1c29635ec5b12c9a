"""The example project: the shop takes payments, mails receipts once, and its demo says the truth."""

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
from django_skipqueue.periodic.registry import all_entries
from django_skipqueue.testing import run_jobs
from payments.forms import PaymentForm
from payments.jobs import daily_summary, send_receipt
from payments.mailbox import Mailbox, amount_paid
from payments.management.commands.customers import come_in
from payments.models import BlockedAddress, EmailDelivery, Payment, PaymentLine
from payments.receipts import receipt_email
from payments.tasks import HAS_TASKS
from payments.views import take_payment

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
    """Mails are written into files of this test."""
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
    def test_saves_it_and_defers_its_receipt(self, db: None, client: Any) -> None:
        assert client.post("/", ORDER).status_code == 302

        payment = Payment.objects.get()
        assert payment.total == sum(line.unit_price * line.quantity for line in payment.lines.all())
        assert Job.objects.get().kwargs == {"payment_id": payment.pk}

    def test_a_rollback_leaves_neither(self, db: None) -> None:
        form = PaymentForm(ORDER)
        assert form.is_valid()
        with transaction.atomic():
            take_payment(form)
            transaction.set_rollback(True)

        assert not Payment.objects.exists()
        assert not Job.objects.exists()

    def test_there_is_no_payment_without_a_job(self, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
        form = PaymentForm(ORDER)
        assert form.is_valid()
        monkeypatch.setattr(send_receipt, "defer", lambda payment_id: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take_payment(form)

        assert not Payment.objects.exists()

    def test_a_wrong_address_is_refused(self, db: None, client: Any) -> None:
        assert b"Enter a valid email address" in client.post("/", {**ORDER, "email": "nowhere"}).content
        assert not Job.objects.exists()

    def test_the_page_says_what_became_of_each_receipt(self, db: None, client: Any) -> None:
        for reference, email in [("0001", "a@sent.example"), ("0002", "b@blocked.example"), ("0003", "c@new.example")]:
            make_payment(reference, email=email)
        send_receipt(Payment.objects.get(reference="0001").pk)
        BlockedAddress.objects.create(address="B@blocked.example")

        rows = re.findall(r"<td>(000\d)</td>.*?<span class=\"(\w+)\">", client.get("/").content.decode(), re.DOTALL)
        assert dict(rows) == {"0001": "sent", "0002": "blocked", "0003": "waiting"}


class TestSendReceipt:
    def test_sends_once_however_often_it_runs(self, payment: Payment, mailoutbox: list[Any]) -> None:
        for _ in range(2):
            assert send_receipt(payment.pk) == payment.email

        assert len(mailoutbox) == 1
        assert EmailDelivery.objects.get().payment == payment

    def test_sends_once_when_it_runs_twice_at_the_same_time(
        self, session: Any, transactional_db: None, mailoutbox: list[Any]
    ) -> None:
        payment = make_payment()
        first, second = session(), session()
        first.begin()
        first(send_receipt, payment.pk)
        late = second.start(send_receipt, payment.pk)
        second.wait_until_blocked()
        first.commit()

        assert late.result() == payment.email
        assert len(mailoutbox) == 1

    def test_sends_again_when_the_first_run_was_rolled_back(
        self, session: Any, transactional_db: None, mailoutbox: list[Any]
    ) -> None:
        payment = make_payment()
        crashed = session()
        crashed.begin()
        crashed(send_receipt, payment.pk)
        crashed.rollback()
        send_receipt(payment.pk)

        assert [mail.message()["Message-ID"] for mail in mailoutbox] == ["<receipt-0001@chinook.example>"] * 2
        assert EmailDelivery.objects.count() == 1

    def test_a_busy_mail_server_is_tried_again(self, db: None, mailbox: Mailbox, settings: Any) -> None:
        settings.EMAIL_BACKEND = "payments.mailbox.BusyMailboxBackend"
        for number in range(30):
            send_receipt.defer(payment_id=make_payment(f"{number:04}").pk)

        run_jobs()
        refused = Job.objects.scheduled()
        assert 0 < refused.count() == mailbox.refusals() < 10
        assert EmailDelivery.objects.count() == 30 - refused.count()
        assert all("The mail server is busy" in job.last_error for job in refused)

        run_jobs(include_scheduled=True)
        assert Job.objects.completed().count() == 30
        assert len(list(mailbox.receipts())) == 30

    def test_a_blocked_address_fails_at_once_until_it_is_taken_off_the_list_and_retried(
        self, payment: Payment, mailoutbox: list[Any]
    ) -> None:
        blocked = BlockedAddress.objects.create(address=payment.email, reason="the mailbox is full")
        send_receipt.defer(payment_id=payment.pk)
        [job] = run_jobs()
        assert (job.status, job.attempts) == ("failed", 1)
        assert job.last_error == f"AddressBlocked: {payment.email} is blocked: the mailbox is full"
        assert not mailoutbox

        blocked.delete()
        assert job.retry()
        [job] = run_jobs()
        assert job.status == "completed"
        assert [mail.to for mail in mailoutbox] == [[f'"Leonie Köhler" <{payment.email}>']]


class TestReceipts:
    def test_say_what_was_bought_and_paid(self, payment: Payment) -> None:
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
    def test_come_out_of_the_mailbox_as_they_went_in(self, db: None, mailbox: Mailbox, name: str, email: str) -> None:
        receipt_email(make_payment(customer_name=name, email=email, total="13.86")).send()

        [mail] = mailbox.receipts()
        [address] = mail["To"].addresses
        assert (address.display_name, address.addr_spec) == (name, email)
        assert f"Dear {name}," in mail.get_content()
        assert amount_paid(mail) == Decimal("13.86")

    def test_a_receipt_sent_twice_can_be_seen(self, payment: Payment, mailbox: Mailbox) -> None:
        for _ in range(2):
            receipt_email(payment).send()
        assert len(list(mailbox.receipts())) == 2

        (mailbox.folder / "letter.eml").touch()
        mailbox.clear()
        assert [path.name for path in mailbox.folder.glob("*.eml")] == ["letter.eml"]


def test_the_invoices_are_imported_once_however_often(db: None) -> None:
    for _ in range(2):
        call_command("import_invoices", verbosity=0)

    assert Payment.objects.count() == 412
    assert PaymentLine.objects.count() == 2240
    assert Payment.objects.aggregate(total=Sum("total")) == {"total": Decimal("2328.60")}
    lines = Payment.objects.annotate(lines_total=Sum(F("lines__unit_price") * F("lines__quantity")))
    assert not lines.exclude(total=F("lines_total")).exists()


@pytest.fixture
def server_url() -> Iterator[str]:
    """An empty database of its own."""
    server = os.environ["DATABASE_URL"]
    name = f"example_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


class TestDemo:
    """`manage.py demo`, in a database of its own on the server under test."""

    FIGURES = """
  receipts sent      410   $2,288.88   counted from the mails in the mailbox
    after a retry     28               the mail server was busy at the first attempt
  failed               2      $39.72
    0404                     $25.86   AddressBlocked: office@ledger-and-sons.example is blocked: the mailbox is full
    0411                     $13.86   AddressBlocked: invoices@zaehlwerk.example is blocked: the mailbox is full
  together           412   $2,328.60   of 412 payments, $2,328.60
"""

    @pytest.mark.timeout(300)
    def test_every_receipt_is_sent_or_accounted_for_in_each_run(self, server_url: str, tmp_path: Path) -> None:
        environment = {**os.environ, "DATABASE_URL": server_url, "EMAIL_FILE_PATH": str(tmp_path)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        for _ in range(2):
            demo = subprocess.run([sys.executable, MANAGE, "demo"], env=environment, capture_output=True, text=True)
            assert demo.returncode == 0, demo.stderr
            assert self.FIGURES in demo.stdout
            assert "make serve" in demo.stdout
            assert SPEED.search(demo.stdout)
            paid = YEARS_PAID.search(demo.stdout)
            assert (paid is not None) == HAS_TASKS
            assert paid is None or sum(map(Decimal, paid.groups())) == Decimal("2328.60")

        receipts = list(Mailbox(tmp_path).receipts())
        assert len({mail["Message-ID"] for mail in receipts}) == len(receipts) == 410
        with psycopg.connect(server_url) as connection:
            assert dict(connection.execute("SELECT status, count(*) FROM skipqueue_job GROUP BY status")) == {
                "completed": 410 + HAS_TASKS,
                "failed": 2,
            }


class TestServe:
    """`manage.py serve`: something to see in the admin."""

    def test_customers_leave_jobs_of_all_kinds_that_run(self, db: None, mailbox: Mailbox) -> None:
        for number in range(25):
            come_in(number)
        deferred = set(Job.objects.values_list("task", "status"))
        assert deferred == {
            ("payments.jobs.send_receipt", "queued"),
            ("payments.jobs.fetch_exchange_rates", "queued"),
            ("payments.jobs.print_catalogue", "queued"),
            ("payments.jobs.ask_for_review", "scheduled"),
        }
        Job.objects.filter(task="payments.jobs.print_catalogue").update(kwargs={"pages": 0})
        run_jobs(include_scheduled=True)
        ends = set(Job.objects.exclude(task="payments.jobs.fetch_exchange_rates").values_list("status", flat=True))
        assert ends == {"completed"}

    @pytest.mark.timeout(120)
    def test_it_keeps_moving_and_ctrl_c_stops_all_of_it(self, server_url: str, tmp_path: Path) -> None:
        environment = {**os.environ, "DATABASE_URL": server_url, "EMAIL_FILE_PATH": str(tmp_path)}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        serve = subprocess.Popen(
            [sys.executable, MANAGE, "serve", "--port", port],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: completed(server_url) >= 2, "customers' jobs are run", deadline=60)
            started = psutil.Process(serve.pid).children(recursive=True)
            assert len(started) >= 3
            serve.send_signal(signal.SIGINT)
            assert serve.wait(60) == 0
            wait_until(lambda: not any(process.is_running() for process in started), "nothing is left")
        finally:
            serve.kill()
            serve.wait()


def completed(url: str) -> int:
    """How many jobs are completed; none before there is a table."""
    with psycopg.connect(url) as connection:
        if connection.execute("SELECT to_regclass('skipqueue_job')").fetchone() == (None,):
            return 0
        row = connection.execute("SELECT count(*) FROM skipqueue_job WHERE status = 'completed'").fetchone()
        assert row is not None
        return int(row[0])


def test_the_daily_summary_has_a_schedule(db: None) -> None:
    found = {entry.name: entry for entry in all_entries()[0]}
    entry = found["payments.jobs.daily_summary"]
    assert (entry.cron, entry.timezone) == ("0 9 * * mon-fri", "Europe/Berlin")
    assert daily_summary() == "0 payments, $0.00, 0 receipts sent"
