"""Programs that were compiled before: under a key of everything that matters, in a folder.

`key` says what a compilation depends on, with `describe` for values and `code` for what they
execute; `folder` keeps the entries, in the store
that also has graphs; `comparisons` notes there what was compared. Nothing here compiles, and nothing is
unpickled.
"""

from ..support.folder_store import cache_folder
from .comparisons import Comparisons
from .describe import Unknown
from .entry import Entry
from .folder import Cache, open_cache
from .key import further_key, key_of, key_of_read

__all__ = [
    "Cache",
    "Comparisons",
    "Entry",
    "Unknown",
    "cache_folder",
    "further_key",
    "key_of",
    "key_of_read",
    "open_cache",
]
