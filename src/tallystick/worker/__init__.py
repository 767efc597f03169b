"""The supervisor: it holds the keys, starts one child per run, and seals what comes back."""
