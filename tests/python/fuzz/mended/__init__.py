"""Programs that once went wrong, each under the plan that showed it: they hold now."""

from __future__ import annotations

from .constants import CONSTANTS
from .empty import EMPTY
from .factors import FACTORS
from .gradients import GRADIENTS
from .norms import NORMS
from .order import ORDER
from .program import Mended
from .results import RESULTS

__all__ = ["MENDED", "Mended"]

MENDED = [*CONSTANTS, *EMPTY, *FACTORS, *GRADIENTS, *NORMS, *ORDER, *RESULTS]
