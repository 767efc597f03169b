"""Parts of the numeric fingerprint: weights from integers, and tiny models made of them."""
