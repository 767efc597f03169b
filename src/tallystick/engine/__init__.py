"""The inference engine behind a small port. Only child processes load it."""
