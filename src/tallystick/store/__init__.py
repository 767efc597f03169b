"""What is on disk: where things live, and artifact sets."""
