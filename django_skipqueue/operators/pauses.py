"""What a pause of a queue says about itself, in sentences."""

from datetime import datetime

from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext

from ..models import Queue
from ..values.codec import shorten

NAME_LIMIT = 200


def pause_of(queue_name: str) -> Queue | None:
    return Queue.objects.paused().filter(name=queue_name).first()


def sentence(queue: Queue) -> str:
    values = {"queue": shorten(queue.name, NAME_LIMIT), "by": shorten(queue.paused_by, NAME_LIMIT)}
    if queue.paused_until:
        values["time"] = moment(queue.paused_until)
        text = gettext("The queue “%(queue)s” is paused until %(time)s")
        if queue.paused_by:
            text = gettext("The queue “%(queue)s” is paused by %(by)s until %(time)s")
    else:
        text = gettext("The queue “%(queue)s” is paused until it is resumed")
        if queue.paused_by:
            text = gettext("The queue “%(queue)s” is paused by %(by)s until it is resumed")
    return f"{text % values}: {queue.reason}" if queue.reason else f"{text % values}."


def moment(time: datetime) -> str:
    """The end of a pause, to the minute, in the time zone of the site."""
    return date_format(localtime(time), "Y-m-d H:i T")
