"""The columns of rates in the statements of the core. Pure.

An attempt uses up its job's token, so a retry needs another token. A released job keeps its token.
"""

from ...values.part import Condition, PartColumns

COLUMNS = PartColumns(
    key="rate_key",
    of_key={"rate_interval": "float8", "rate_burst": "smallint"},
    gate=Condition(
        gate="rate",
        holds="{rate_key}::text IS NOT NULL",
        key="rate_key",
        returns="{rate_key} IS NOT NULL",
        keeps_released=True,
    ),
)
