"""A task's page: its options, links to lists of its jobs, and the parts' sections. It does not read the jobs."""

from dataclasses import dataclass, fields
from typing import Any

from django.utils.http import urlencode

from ....conf import settings
from ....exceptions import UnknownTask
from ....jobs.registry import registry
from ....jobs.task import Task
from ...job_states import STATES
from ...parts import PartSection, consoles


@dataclass(frozen=True)
class TaskPage:
    name: str

    @property
    def task(self) -> Task[Any, Any] | None:
        """The task, or `None` if this process knows no task with this name."""
        try:
            return registry.get(self.name)
        except UnknownTask:
            return None

    @property
    def options(self) -> list[tuple[str, str]]:
        """The task's options, with their values as text."""
        if self.task is None:
            return []
        task, task_options = self.task, self.task.options
        part_options = {
            field.name: getattr(part, field.name) for part in task_options.of_parts for field in fields(part)
        }
        options = {
            "queue_name": task_options.queue_name,
            "priority": task_options.priority,
            "max_attempts": task_options.max_attempts or settings.max_attempts,
            "timeout": task.timeout,
            "retry_on": task.policy.retry_on,
            "discard_on": task.policy.discard_on or None,
            "atomic": task.atomic or None,
            "retention": task_options.retention,
            "redact": task.redact or None,
            "database": task_options.database,
            **part_options,
        }
        return [(name, _value_as_text(value)) for name, value in options.items() if value is not None]

    @property
    def lists(self) -> list[tuple[Any, str]]:
        """Links to lists of the task's jobs by state: label and URL query."""
        return [(label, urlencode({"status": state, "task": self.name})) for state, label in STATES.items()]

    @property
    def sections(self) -> list[tuple[PartSection[str], Any]]:
        return [(section, section.content(self.name)) for part in consoles() for section in part.task_sections]


def _value_as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_value_as_text, value))
    return str(getattr(value, "__qualname__", value))
