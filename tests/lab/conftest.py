"""One lab for all tests of this room."""

from .fixture import staging_lab

__all__ = ["staging_lab"]
