"""The dashboard: cards, charts and tables that say in one minute whether all is well."""
