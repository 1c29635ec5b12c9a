"""Print facts about subjects (queues, workers …) as a table or as JSON; and the base class of such subcommands."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from ...values.fact import Fact
from ..facts import Renderers, as_json, columns, in_terminal
from .subcommand import Exit, Watchable
from .terminal import Console

T = TypeVar("T")


def print_facts(
    console: Console,
    facts: Sequence[Fact[T]],
    subjects: Sequence[T],
    renderers: Renderers[T] | None = None,
    *,
    in_json: bool = False,
) -> None:
    """Print the subjects, if there are any. Numbers are right-aligned."""
    if in_json:
        for subject in subjects:
            console.json(as_json(facts, subject))
    elif subjects:
        shown_facts = columns(facts, subjects, renderers or {})
        console.table(
            [str(fact.title) for fact, _ in shown_facts],
            [
                [render(subject) if render else in_terminal(fact, subject) for fact, render in shown_facts]
                for subject in subjects
            ],
            right=[str(fact.title) for fact, _ in shown_facts if fact.unit not in ("", "time")],
        )


class FactList(Watchable, Generic[T]):
    """A subcommand that lists subjects, such as queues, with their facts. Without a subject, it exits with NEGATIVE."""

    nothing: str
    """The text if there is no subject."""

    def facts(self) -> Sequence[Fact[T]]:
        raise NotImplementedError

    def renderers(self) -> Renderers[T]:
        return {}

    def read(self, **options: Any) -> Sequence[T]:
        raise NotImplementedError

    def run(self, console: Console, **options: Any) -> Exit:
        subjects = self.read(**options)
        print_facts(console, self.facts(), subjects, self.renderers(), in_json=options["json"])
        if not subjects:
            console.say(self.nothing)
        return Exit.DONE if subjects else Exit.NEGATIVE
