"""Which database a job is put into, if several hold queues: `SKIPQUEUE["DATABASES"]`, `SKIPQUEUE["PLACEMENT"]`."""
