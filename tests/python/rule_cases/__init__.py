"""One operator, or a few that are alike, with operands: what `test_rules.py` splits.

`dims` is what the rule of these operators must allow, with sizes: `b=5 k=7`. Sizes are small, and many
do not divide. Float operands are parameters, so that their gradients are compared; those in `made` are
computed by another operator (a sum over a leading dim of three), so that they may be partial sums too.

A family of operators is a file; `rarer` has what few models use, and `overloads` further forms.
"""

from importlib import import_module
from pkgutil import iter_modules

from .case import CASES, Case, Spec, between, data, given, ints, normal

__all__ = ["CASES", "Case", "Spec", "between", "data", "given", "ints", "normal"]

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")
