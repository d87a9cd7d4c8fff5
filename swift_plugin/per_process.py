"""Things that must not cross a fork: clients, open stores, models."""

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
# A forked child must neither use nor destroy its parent's objects: their threads did not come along and their
# sockets are shared. Keeping a reference keeps the destructor from running.
_inherited: list[Any] = []


class PerProcess(Generic[T]):
    """Makes its object at the first `get()` of each process, and again after a fork.

    >>> numbers = PerProcess(lambda: [1, 2])
    >>> numbers.get() is numbers.get()
    True
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value: T | None = None
        self._pid = -1

    def get(self) -> T:
        """This process's object; whatever the maker raises passes through, and the next call tries again."""
        if self._value is None or self._pid != os.getpid():
            if self._value is not None:
                _inherited.append(self._value)
                self._value = None
            self._value = self._make()
            self._pid = os.getpid()
        return self._value

    def take(self) -> T | None:
        """Give this process's object up for closing; None if it was never made here."""
        if self._pid != os.getpid():
            return None
        value, self._value = self._value, None
        return value
