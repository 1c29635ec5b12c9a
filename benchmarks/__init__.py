"""How fast the queue is: `make bench` measures every row of a table, each in a database of its own."""
