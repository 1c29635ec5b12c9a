"""A mail server for demonstrations: mails become files in a folder."""

import re
import smtplib
from collections.abc import Iterator, Sequence
from decimal import Decimal
from email import message_from_bytes
from email.message import EmailMessage as ParsedMail
from email.message import Message
from email.policy import default as parse_headers
from itertools import chain, count
from pathlib import Path
from typing import Any
from zlib import crc32

from django.conf import settings
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend
from django.utils.text import get_valid_filename


class Mailbox:
    """A folder with one `.eml` file for each mail, named after its Message-ID."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(folder or settings.EMAIL_FILE_PATH)

    def add(self, mail: Message) -> None:
        """Write the mail into a new file. If the mail was sent before, a number in the file name shows that."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = get_valid_filename(str(mail["Message-ID"]).strip("<>").partition("@")[0])
        for path in chain([self.folder / f"{name}.eml"], (self.folder / f"{name}.{n}.eml" for n in count(2))):
            try:
                with path.open("xb") as file:
                    file.write(mail.as_bytes())
            except FileExistsError:
                continue
            return

    def receipts(self) -> Iterator[ParsedMail]:
        """Yield every receipt in the folder."""
        for path in sorted(self.folder.glob("receipt-*.eml")):
            yield message_from_bytes(path.read_bytes(), policy=parse_headers)

    def refuse_once(self, message_id: str) -> bool:
        """Whether this mail was not refused before. A file stores the refusal for all processes that send mails."""
        refused = self.folder / ".refused"
        refused.mkdir(parents=True, exist_ok=True)
        try:
            (refused / get_valid_filename(message_id)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def refusals(self) -> int:
        """How many mails were refused."""
        return sum(1 for _ in self.folder.glob(".refused/*"))

    def clear(self) -> None:
        """Remove the receipts, but no other files in the folder."""
        for path in [*self.folder.glob("receipt-*.eml"), *self.folder.glob(".refused/*")]:
            path.unlink()


def amount_paid(receipt: ParsedMail) -> Decimal:
    """The amount that a customer reads in the receipt."""
    total = re.search(r"^Total paid: \$(\d+\.\d\d)$", receipt.get_content(), re.MULTILINE)
    if not total:
        raise ValueError(f"There is no total in the mail {receipt['Subject']!r}.")
    return Decimal(total[1])


class MailboxBackend(BaseEmailBackend):
    """An e-mail backend for Django that puts mails into the mailbox."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mailbox = Mailbox()

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        """Deliver all messages. Raises the errors of a mail server."""
        for message in email_messages:
            self.deliver(message.message())
        return len(email_messages)

    def deliver(self, mail: Message) -> None:
        """Deliver one mail."""
        self.mailbox.add(mail)


class BusyMailboxBackend(MailboxBackend):
    """Behaves like a busy mail server: it refuses about every fifteenth mail once, in each run the same mails."""

    def deliver(self, mail: Message) -> None:
        """Deliver one mail, or raise the error of a busy mail server."""
        message_id = str(mail["Message-ID"])
        if crc32(message_id.encode()) % 15 == 0 and self.mailbox.refuse_once(message_id):
            raise smtplib.SMTPResponseException(451, "The mail server is busy, try again later")
        super().deliver(mail)
