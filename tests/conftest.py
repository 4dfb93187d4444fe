"""Settings of all tests. No deadline a case: a busy machine is no fault of the code."""

import signal

from hypothesis import settings

settings.register_profile("ramify", deadline=None)
settings.load_profile("ramify")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a script: Ctrl-C would be ignored here, and by every process that tests begin.
    signal.signal(signal.SIGINT, signal.default_int_handler)
