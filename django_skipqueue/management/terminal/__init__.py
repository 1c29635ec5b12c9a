"""The ground that the subcommands stand on: streams, tables, types of options, exit codes, the dispatcher."""
