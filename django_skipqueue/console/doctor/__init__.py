"""The doctor examines the queue and its database, and says what to do about each finding."""
