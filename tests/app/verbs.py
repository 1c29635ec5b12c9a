"""The verbs of the core, for tests of all of them. The verbs of a part are tested with the part."""

from django_skipqueue.console.verbs.table import CORE_VERBS

VERBS = CORE_VERBS

BUTTONS = tuple((verb, verb.button) for verb in VERBS if verb.button)

BY_ACTION = {verb.action_name: verb for verb in VERBS}
"""The verbs by the names of their actions in the admin."""
