"""The page of the doctor: what is wrong with the queue and its database, and what to do about it."""
