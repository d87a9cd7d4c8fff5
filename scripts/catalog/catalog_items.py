"""One row of a catalogue to one point's id and payload, or the reason why not."""

import json
import math
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

MAX_TITLE = 2000  # characters; more is a shifted column or an unclosed quote, and no encoder reads it
# Ids are made from content under this name. Another name would make every catalogue new.
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "planner-grpo-kit/catalogue/1")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
SURROGATE = re.compile("[\ud800-\udfff]")


class BadRow(ValueError):
    """A row that makes no item; the message begins with the kind of fault, up to a colon."""


@dataclass(frozen=True)
class Item:
    """`id` is a UUID made from the payload alone; `payload` holds `title` and what else is known."""

    id: str
    payload: Mapping[str, Any]

    @property
    def title(self) -> str:
        title: str = self.payload["title"]
        return title


def make_item(values: Mapping[str, Any], currency: str | None = None) -> Item:
    """The item of one row's `values` (by field name); `currency` is that of a price whose row names none.

    White space within a title becomes single spaces. What is missing, null or blank is left out: an unknown price is
    no fault. Raises BadRow.

    >>> make_item({"title": " Trail  shoes", "price": "59.90", "category": ""}, "USD").payload
    {'title': 'Trail shoes', 'price': 59.9, 'currency': 'USD'}
    """
    payload: dict[str, Any] = {"title": _title(values.get("title"))}
    category = _text("category", values.get("category"))
    if category:
        payload["category"] = category
    price = _price(values.get("price"))
    if price is not None:
        payload["price"] = price
        unit = _text("currency", values.get("currency")) or currency
        if unit:
            payload["currency"] = unit
    return Item(content_id(payload), payload)


def content_id(payload: Mapping[str, Any]) -> str:
    """The id of a payload, the same in every run and on every machine.

    >>> content_id({"title": "Trail shoes", "price": 59.9}) == content_id({"price": 59.9, "title": "Trail shoes"})
    True
    """
    return str(uuid.uuid5(NAMESPACE, json.dumps(payload, ensure_ascii=False, sort_keys=True, separators=(",", ":"))))


def _title(value: Any) -> str:
    title = _text("title", value)
    if not title:
        raise BadRow("no title")
    if len(title) > MAX_TITLE:
        raise BadRow(f"title too long: {len(title)} characters, at most {MAX_TITLE}; a quote that is never closed?")
    return title


def _text(field: str, value: Any) -> str:
    """The text with single spaces, "" where there is none. A whole number counts as text, but not as a title.

    A column of whole numbers with gaps becomes one of floats in pandas, with NaN for the gaps.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and field != "title":
        return str(value)
    if not isinstance(value, str):
        raise BadRow(f"{field} is no text: {_shown(value)}")
    if SURROGATE.search(value):
        raise BadRow(f"{field} is no UTF-8: convert the file, as with iconv -f GB18030 -t UTF-8")
    return " ".join(value.split())


def _price(value: Any) -> float | None:
    """A number from 0; None where there is none (in Parquet often NaN)."""
    if value is None or (isinstance(value, str) and not value.strip()) or value != value:
        return None
    plain = isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
    if plain or (isinstance(value, str) and _NUMBER.fullmatch(value.strip())):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if 0 <= number < math.inf:
            return number
    raise BadRow(f"price is no plain number: {_shown(value)}")


def _shown(value: Any) -> str:
    return ascii(value)[:80]
