"""The version of the SDK, which it also sends as its User-Agent."""

__version__ = "0.1.0"
