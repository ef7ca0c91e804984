"""One file per schedule; each registers itself."""
