"""The version, apart from the package's front so that every part may read it."""

__version__ = "0.1.0"
