"""What can go wrong, by name."""


class Error(Exception):
    """Base of every error of this package."""


class WireError(Error, ValueError):
    """Bytes that are not a message of this scheme and size."""
