"""Ids of jobs, as a browser sends them."""

from ..values.handles import LARGEST_ID


def is_id(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(LARGEST_ID)) and int(text) <= LARGEST_ID
