"""Settings of all tests. Hypothesis tries the same examples in every run, without a clock.

``HYPOTHESIS_PROFILE=thorough`` looks for new ones, ten times as many.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# What starts the tests may have them ignore these (nohup, a shell's background job), and programs
# that they start would ignore them, too; a handler is not inherited. SIGHUP still ends no test run.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)
