"""Records an operator's verb in the row of the job that it changes: `operations` holds the newest 50."""

from collections.abc import Mapping

APPENDED = """COALESCE(
        CASE WHEN jsonb_array_length(job.operations) < 50 THEN job.operations ELSE job.operations - 0 END, '[]'
    ) || jsonb_build_object(
        'at', statement_timestamp(), 'verb', '{verb}', 'by', %(by)s::text, 'reason', %(reason)s::text,
        'attempts', job.attempts{more}
    )"""


def recording(verb: str, statement: str, *, more: Mapping[str, str] | None = None) -> str:
    """Replace `{operations}` in a statement by the job's operations, with this verb at the end. Called at import.

    more: further keys of the entry, each with its value in SQL.
    """
    pairs = "".join(f", '{key}', {value}" for key, value in (more or {}).items())
    return statement.replace("{operations}", APPENDED.replace("{verb}", verb).replace("{more}", pairs))
