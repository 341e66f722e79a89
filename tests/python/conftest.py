"""Tests are quiet, and leave nothing in the user's cache. Processes that they start inherit it."""

from __future__ import annotations

import os

os.environ.setdefault("SHARDWRIGHT_CACHE", "off")
os.environ.setdefault("SHARDWRIGHT_PROGRESS", "off")
