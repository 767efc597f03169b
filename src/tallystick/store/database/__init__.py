"""What the SQLite files of the project share: their place, their marks, why one is unusable."""
