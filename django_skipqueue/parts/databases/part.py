"""The part `databases` for the core: the placement of jobs, one supervisor per database, and system checks."""

from ...values.part import Part, console_of, later
from .checks import check_placement, check_retiring
from .choose import SeveralDatabases

PART = Part(
    name="databases",
    placement=SeveralDatabases(),
    run_supervisors=later(f"{__package__}.steward.run_supervisors"),
    checks=(check_placement,),
    database_checks=(check_retiring,),
    console=console_of(__package__),
)
