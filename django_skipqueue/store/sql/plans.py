"""Keep the plans of prepared statements."""

# worker, on a connection that no pooler shares: to plan each prepared statement once. Without it PostgreSQL plans a
# statement with each call until it has compared the plans: 1 ms for a claim, which takes another.
PLAN_ONCE = "SET plan_cache_mode = force_generic_plan"

# worker, on such a connection, after a slow statement: to plan them once more, for the table as it is now.
PLAN_ANEW = "DISCARD PLANS"
