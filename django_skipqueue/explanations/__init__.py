"""Why a job waits, in sentences that the admin and the command line share."""
