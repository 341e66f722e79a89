"""`ShardwrightStrategy`: a `Trainer` of Lightning whose module runs in parallel."""

from __future__ import annotations

from .strategy import ShardwrightStrategy

__all__ = ["ShardwrightStrategy"]
