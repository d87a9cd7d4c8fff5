"""A catalogue of 160 titles, a golden record and plans: what the environment's tests score against."""

import json
from pathlib import Path
from typing import Any

from swift_plugin.encoders import HashedEncoder
from swift_plugin.reward_loader import Reward, load_reward
from swift_plugin.settings import Settings
from swift_plugin.stores import EdgeStore

REWARD_FILE = Settings().reward_file
ATTRIBUTES = ("waterproof", "wide", "leather", "vegan", "thermal", "foldable", "wireless", "compact")
PRODUCTS = (
    "running shoes",
    "running socks",
    "shoelaces for running shoes",
    "hiking boots",
    "rain jacket",
    "desk lamp",
    "phone case",
    "dining table",
    "yoga mat",
    "coffee grinder",
)
TITLES = [f"{maker} {a} {p}" for maker in ("Nordvik", "Alpra") for a in ATTRIBUTES for p in PRODUCTS]
TEXT = "想买一双防水的跑鞋"


def reward() -> Reward:
    return load_reward(REWARD_FILE)


def encoder() -> HashedEncoder:
    return HashedEncoder(reward().words)


def build_store(folder: Path, titles: list[str] = TITLES) -> Path:
    made = encoder()
    store = EdgeStore.create(folder, made.dim, encoder=made.name)
    store.add(made.encode(titles), [{"title": title} for title in titles])
    store.finish()
    return folder


def golden(**changes: Any) -> str:
    record = {
        "category": "跑鞋",
        "domains": ["footwear"],
        "budget_amount": None,
        "clear_budget": False,
        "must_have": ["waterproof"],
        "category_anchor": "running shoes",
        "exclude_expected": False,
        "status": "agree",
    }
    return json.dumps({**record, **changes}, ensure_ascii=False)


def plan(*keywords: str, **changes: Any) -> str:
    made = {
        "category": "跑鞋",
        "domains": ["footwear"],
        "budget_amount": None,
        "clear_budget": False,
        "keywords": list(keywords),
        "exclude_terms": [],
    }
    return json.dumps({**made, **changes}, ensure_ascii=False)
