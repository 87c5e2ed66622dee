"""Settings of all tests."""

from hypothesis import settings

# Examples share two cores with other processes; how long one takes is no property of the code.
settings.register_profile("moescale", deadline=None)
settings.load_profile("moescale")
