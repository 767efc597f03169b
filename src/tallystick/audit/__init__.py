"""Second looks: replay, and the difference of two receipts."""
