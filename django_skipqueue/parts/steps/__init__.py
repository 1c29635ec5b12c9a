"""Jobs that go on where they stopped: steps, sleeps, signals, children, and loops with a cursor."""
