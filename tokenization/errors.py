"""The errors that a user can cause, each one line: what is wrong, where, found, wanted, the way out.

The lowest room owns them so that every room can raise them; only `kvtune.cli` prints them and picks the
exit code from the class. Texts never quote prompt content.
"""

from __future__ import annotations


class KvtuneError(Exception):
    """A problem that the user can mend. `str(error)` is the one line that is printed."""

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        field: str | None = None,
        found: str | None = None,
        wanted: str | None = None,
        way_out: str | None = None,
    ) -> None:
        self.what = what
        self.where = where
        self.field = field
        self.found = found
        self.wanted = wanted
        self.way_out = way_out
        super().__init__(self._line())

    def _line(self) -> str:
        text = self.what
        if self.field:
            text = f"{self.field}: {text}"
        if self.where:
            text = f"{self.where}: {text}"
        details = [
            f"{label} {value}"
            for label, value in (("found", self.found), ("wanted", self.wanted))
            if value is not None
        ]
        if details:
            text += f" ({', '.join(details)})"
        if self.way_out:
            text += f"; {self.way_out}"
        return " ".join(text.split())


class UnusableInputError(KvtuneError):
    """Arguments, configuration or a file that cannot be used (exit code 2)."""

    exit_code = 2


class NoUsableRequestError(KvtuneError):
    """The trace holds no request that says anything about prefixes (exit code 3)."""

    exit_code = 3


class MissingDependencyError(KvtuneError):
    """A device, server or optional package is not there (exit code 4)."""

    exit_code = 4
