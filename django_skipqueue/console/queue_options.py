"""What an operator may set for a queue, in place of the value of the settings, such as its limit."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..models import Queue

if TYPE_CHECKING:
    from .admin.queues.setting_form import SettingForm

T = TypeVar("T")


@dataclass(frozen=True)
class QueueSetting(Generic[T]):
    """The value of an option that holds now for a queue, and whether somebody has changed it."""

    by_settings: T | None
    """The value of the settings; `None`: any number of jobs."""
    changed: T | None = None
    """The value of the queue's row; 0: any number of jobs; `None`: nobody has changed it."""

    @property
    def is_changed(self) -> bool:
        return self.changed is not None

    @property
    def value(self) -> T | None:
        """The value that holds; `None`: any number of jobs."""
        return self.by_settings if self.changed is None else self.changed or None


@dataclass(frozen=True, kw_only=True)
class QueueOption(Generic[T]):
    """What a part lets operators set for each queue: where it is stored, its column in lists, and its page."""

    name: str
    """Of its column, for the style sheet."""
    column: str
    """Of the row of a queue."""
    names: Callable[[], Collection[str]]
    """The queues that have a value in the settings, `None` included."""
    by_settings: Callable[[str], tuple[str | None, T | None]]
    """The key of the jobs of a queue, `None` if they have none, and the value of the settings."""
    form: type["SettingForm"]
    change: Callable[..., None]
    follow_settings: Callable[..., None]
    label: Any
    """Of its column."""
    is_always_shown: bool = False
    """Whether it has a column even if no queue has a value."""
    page: str
    """The end of its address, and its name."""
    button: Any
    button_in_full: Any
    """The button with the name of the queue, for a screen reader."""
    title: Any
    heading: Any
    explanation: Any
    without: Any
    """Says that the queue has no such setting."""
    changed: Any
    follows_settings: Any

    def of_all(self) -> dict[str, QueueSetting[T]]:
        """The settings of the queues that have one, by the name of the queue, `None` in the settings included."""
        changed = dict(Queue.objects.filter(**{f"{self.column}__isnull": False}).values_list("name", self.column))
        names = sorted({*self.names(), *changed})
        return {name: QueueSetting(self.by_settings(name)[1], changed.get(name)) for name in names}

    def of(self, queue_name: str) -> QueueSetting[T] | None:
        """The setting of this queue; `None`: its jobs have no key, so that a value would hold for none of them."""
        changed, (key, value) = self.changed_in_row(queue_name), self.by_settings(queue_name)
        return None if changed is None and key is None else QueueSetting(value, changed)

    def changed_in_row(self, queue_name: str) -> T | None:
        """The value of the queue's row; `None`: nobody has changed it."""
        found: T | None = Queue.objects.filter(name=queue_name).values_list(self.column, flat=True).first()
        return found
