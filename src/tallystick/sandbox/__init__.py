"""Child processes: how they are started, spoken to, and (later) caged."""
