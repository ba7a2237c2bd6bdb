"""The place that written specifications of environments name for :class:`OwnLast`."""

from vinoreward.wrappers.render_once import OwnLast

__all__ = ["OwnLast"]
