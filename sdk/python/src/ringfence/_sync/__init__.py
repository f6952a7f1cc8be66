# Generated from ../_async/__init__.py by scripts/generate_sync.py; change that file.
"""The sync client, generated from `ringfence._async` by scripts/generate_sync.py."""
