"""One file per codec; each registers itself."""
