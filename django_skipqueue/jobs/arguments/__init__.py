"""Arguments and results of more types than JSON has, by the annotations of their task.

Read `annotations` first: it chooses a codec for each annotation, once for each task.
"""
