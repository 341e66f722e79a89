"""Modules and functions that run as they are, and may be divided all the same: by a rule that somebody
states, or by one that is found by trying, when that is asked for.

What is tried runs on the CPU, in double precision, with the values that the model has there, and is used only
as far as all trials agree. Which parts are tried and which rule that makes, the compiler says, as for
`ops discover`.
"""

from __future__ import annotations

from .divide import divide

__all__ = ["divide"]
