"""How hypothesis searches: the same examples in every run, without a clock.

``HYPOTHESIS_PROFILE=thorough`` looks for new ones, ten times as many.
"""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
