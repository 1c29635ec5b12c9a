"""Tell PostgreSQL that the job table is hot: each job leaves three dead rows behind on its way through the statuses."""

from django.db import migrations

from ._postgresql import run_on_postgresql

# autovacuum_vacuum_scale_factor, _threshold: vacuum after 2,000 dead rows and 1 % of the table, not after 20 % of it: the
#   claim index must not grow a tail of dead entries because ten million finished jobs make 20 % a distant goal.
# autovacuum_vacuum_insert_scale_factor: the same for rows that are only inserted (a large backlog), to set their visibility.
# autovacuum_analyze_scale_factor, _threshold: the share of each status changes quickly; the planner should know.
# autovacuum_vacuum_cost_delay: let vacuum run at full speed here; a slow one is overtaken by the workers.
# fillfactor: a claim and a settle each write a new version of the row; room on its own page keeps both on that page.
JOB = """
ALTER TABLE skipqueue_job SET (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    fillfactor = 85
)
"""

# fillfactor: a heartbeat changes no indexed column, so with room on the page it writes no index (a HOT update).
# autovacuum_vacuum_threshold, _scale_factor: a handful of rows, rewritten every few seconds.
WORKER = """
ALTER TABLE skipqueue_worker SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 500
)
"""

RESET = """
ALTER TABLE skipqueue_job RESET (
    autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold,
    autovacuum_vacuum_insert_scale_factor,
    autovacuum_analyze_scale_factor,
    autovacuum_analyze_threshold,
    autovacuum_vacuum_cost_delay,
    fillfactor
);
ALTER TABLE skipqueue_worker RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold)
"""


class Migration(migrations.Migration):
    """Set the storage parameters of both tables."""

    dependencies = (("django_skipqueue", "0001_initial"),)

    operations = (migrations.RunPython(run_on_postgresql(JOB, WORKER), run_on_postgresql(RESET)),)
