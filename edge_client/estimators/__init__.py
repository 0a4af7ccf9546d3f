"""How a step's gradient is found: a module each, and one row in `registry`."""
