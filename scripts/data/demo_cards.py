"""Write the demo's cards: the first 72 of the category cards, which is what a nano model can hold.

The demo's catalogue, requests and measured results rest on these cards and their order; new cards go below them.
"""

import argparse
import sys
from pathlib import Path

from scripts.files import write_atomically
from swift_plugin.cards import DEFAULT_CARDS, load_cards
from swift_plugin.settings import DEMO_DIR

DEMO_CARDS = 72


def write_demo_cards(cards: Path, out: Path) -> int:
    """Copy the first DEMO_CARDS lines of `cards` to `out` and return their number.

    Raises FileNotFoundError, or ValueError for fewer lines, or when they do not stand on their own.
    """
    lines = [line for line in cards.read_text(encoding="utf-8").splitlines() if line.strip()][:DEMO_CARDS]
    if len(lines) < DEMO_CARDS:
        raise ValueError(f"{cards} holds {len(lines)} cards, the demo needs {DEMO_CARDS}")
    write_atomically(out, "\n".join(lines) + "\n")
    return len(load_cards(out))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python scripts/data/demo_cards.py --out build/demo/cards.jsonl",
    )
    parser.add_argument("--cards", type=Path, default=DEFAULT_CARDS, help="category cards (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=DEMO_DIR / "cards.jsonl", help="(default: %(default)s)")
    args = parser.parse_args()
    try:
        count = write_demo_cards(args.cards, args.out)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{count} cards in {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
