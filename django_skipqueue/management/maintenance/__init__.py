"""The subcommands that look after the queue as a whole and its database, each in a module of its own."""
