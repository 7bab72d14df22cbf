"""Every reader of bytes from outside, given bytes that nobody meant to write."""
