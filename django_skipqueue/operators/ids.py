"""Ids of jobs, as a browser sends them."""

LARGEST_ID = 2**63 - 1


def is_id(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(LARGEST_ID)) and int(text) <= LARGEST_ID
