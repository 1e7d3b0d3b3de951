"""What a function reads and writes in Python besides its array arguments.

`survey` reads it before and after a function runs. What differs was written; what
was read becomes the guards of a recording, an `Ambient`.
"""

from sapwood.tree.guards.ambient import Ambient
from sapwood.tree.guards.restoring import kept_states, lists_added_to, put_back
from sapwood.tree.guards.slots import Slot
from sapwood.tree.guards.survey import AmbientKey, Survey, Surveyor, survey

__all__ = [
    "Ambient",
    "AmbientKey",
    "Slot",
    "Survey",
    "Surveyor",
    "kept_states",
    "lists_added_to",
    "put_back",
    "survey",
]
