"""A run of the published full geometry of Qwen3.6-35B-A3B, from the file to the replay.

Asked for by hand, never by `python -m bench` or CI: it needs 30 GB of disk and 24 GB of memory.
"""
