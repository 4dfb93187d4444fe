"""Settings of all tests. No deadline a case: a busy machine is no fault of the code."""

from hypothesis import settings

settings.register_profile("ramify", deadline=None)
settings.load_profile("ramify")
