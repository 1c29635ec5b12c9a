"""Build the indexes of the queue's tables anew, one at a time, while jobs are enqueued and claimed."""
