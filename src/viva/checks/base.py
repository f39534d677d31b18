"""The root of checks that call no model: they are asked first."""

from viva.model.component import Component


class LocalCheck(Component, frozen=True, kw_only=True):
    """A check that costs next to nothing."""

    @property
    def costly(self) -> bool:
        return False
