"""What a user says of a log: which records count, which field is the time, in which order the file stands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.formats.fields import field_value, text_of
from kvtune.tokenization.formats.format import Record
from kvtune.tokenization.formats.spans import spans_of
from kvtune.tokenization.ordering import Order
from kvtune.tokenization.request import Request

_SEVERAL_MODELS = (
    "Requests name several models: assuming one server whose models share no prefixes (--only model=NAME)."
)
NOT_SELECTED = "Records that --only does not select: passed over"


@dataclass(frozen=True)
class Selection:
    """Attributes:
    only: field -> values, one of which a record must have there (`--only`).
    isolate_by: dotted path of the field whose values share no cache (`--isolate-by`).
    time_field: dotted path of the time of arrival (`--time-field`).
    body_field: dotted path of the request's body (`--body-field`).
    order: which end of a file without times comes first, None: by its content (`--order`).
    model: the model that is analyzed, a folder or a hub id; of several in a log the one that fits it.
    """

    only: dict[str, frozenset[str]] = field(default_factory=dict)
    isolate_by: str | None = None
    time_field: str | None = None
    body_field: str | None = None
    order: Order | None = None
    model: str | None = None

    def selects(self, record: Record) -> bool:
        """Whether a record has one of the wanted values in each wanted field."""
        return all(_value(record, path) in values for path, values in self.only.items())


def parse_only(pairs: Sequence[str]) -> dict[str, frozenset[str]]:
    """`FIELD=VALUE` pairs; several values of one field are alternatives.

    Raises:
        UnusableInputError: a pair without `=` or without a field.
    """
    found: dict[str, frozenset[str]] = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals or not path:
            raise UnusableInputError(
                f"invalid value {pair[:60]!r}",
                field="--only",
                wanted="FIELD=VALUE, for example model=qwen3.5",
            )
        found[path] = found.get(path, frozenset()) | {value}
    return found


def _value(record: Record, path: str) -> str | None:
    value = field_value(record, path)
    if value is None and ("resourceSpans" in record or "resource_spans" in record):
        value = next((field_value(span.attributes, path) for span in spans_of(record)), None)
    return str(value).lower() if isinstance(value, bool | float) else text_of(value)


def of_one_model(
    files: Sequence[list[Request]], selection: Selection
) -> tuple[list[list[Request]], list[str]]:
    """The requests of the model that is analyzed, where the log names several, one fits and the user chose none."""
    everything = [request for file in files for request in file]
    names = {request.identity.model for request in everything} - {""}
    if "model" in selection.only or len(names) < 2:
        return list(files), []
    fits = fitting_models(everything, selection.model)
    if fits is None:
        return list(files), [_SEVERAL_MODELS]
    kept = [[one for one in file if one.identity.model in fits | {""} or one.identity.lora] for file in files]
    others = len(names - fits)
    note = (
        f"{sum(map(len, kept)):,} of {len(everything):,} requests name the model {', '.join(sorted(fits))[:80]}; "
        f"those of {others} other {'name' if others == 1 else 'names'} are passed over. --only model=NAME chooses."
    )
    return kept, [note]


def fitting_models(requests: Sequence[Request], model: str | None) -> frozenset[str] | None:
    """The model names of a trace that mean `model`, where there are others beside; None where nothing is to choose."""
    names = Counter(request.identity.model for request in requests)
    if model is None or len(names) < 2:
        return None
    wanted = _plain_name(model)
    exact = frozenset(name for name in names if _plain_name(name) == wanted)
    near = frozenset(name for name in names if name and wanted.startswith(_plain_name(name)))
    fits = exact or near
    return fits if fits and len(fits) < len(names) else None


def _plain_name(model: str) -> str:
    """A model's name without its organisation, provider, path and spelling."""
    last = re.split(r"[/\\]", model.rstrip("/\\"))[-1].lower()
    return re.sub(r"[^a-z0-9]+", "", last)
