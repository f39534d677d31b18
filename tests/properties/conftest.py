"""Examples may take their time: a busy machine is no counterexample."""

from hypothesis import HealthCheck, settings

settings.register_profile("viva", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("viva")
