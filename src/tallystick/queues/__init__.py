"""Which runs wait to be executed, and whose turn it is: a port and its adapters."""
