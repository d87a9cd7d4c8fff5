"""What swift will make of a command line: the effective arguments, without the 15 seconds of importing swift.

The option table of the installed ms-swift is read once from its own HfArgumentParser and kept under build/cache (one
file a version). From it an `argparse` parser is rebuilt, so every spelling that swift accepts means the same here:
last one wins, `--beta 0.01` and `--beta=0.01`, `-` for `_`, unambiguous abbreviations, bare booleans, `--no_x`, lists.
"""

import argparse
import contextlib
import difflib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from scripts.files import write_atomically
from swift_plugin.settings import MASK, public_url

CHECKOUT = Path(__file__).resolve().parent.parent.parent
CACHE_DIR = CHECKOUT / "build" / "cache"
ARGUMENT_CLASSES = {
    "rlhf": "RLHFArguments",
    "sft": "SftArguments",
    "rollout": "RolloutArguments",
    "deploy": "DeployArguments",
}
# An option table is good for one set of these; the last figure is the table's own format.
KEYED_BY = ("ms-swift", "transformers", "trl")
TABLE_FORMAT = 1
SECRET_FLAG = re.compile(r"(^|_)(token|secret|api_key|password|webhook_url)$")


class SwiftArgsError(ValueError):
    """swift would refuse this command line; the message names the flag and the remedy."""


@dataclass(frozen=True)
class SwiftArgs:
    """The effective arguments of one swift command.

    Attributes:
        command: rlhf, sft, rollout or deploy.
        values: every option of the command by its name, ms-swift's own default where the line does not give it.
        given: names of the options that the line gives.
    """

    command: str
    values: dict[str, Any]
    given: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


@dataclass(frozen=True)
class Option:
    """One option of swift, as its parser declares it (see `argparse.ArgumentParser.add_argument`)."""

    flags: tuple[str, ...]
    name: str
    kind: str  # int, float, bool, str, choice, or false for a bare --no_x
    nargs: str | None
    choices: tuple[Any, ...] | None
    default: Any


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SwiftArgsError(message)


def _truth(text: str) -> bool:
    """The spellings of transformers' string_to_bool."""
    if text.lower() in ("yes", "true", "t", "y", "1"):
        return True
    if text.lower() in ("no", "false", "f", "n", "0"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is not a truth value; give true or false")


def _read_options_from_swift(command: str) -> list[dict[str, Any]]:
    """The option table from ms-swift's own parser, JSON-ready. Imports torch, transformers and swift."""
    print(f"reading the options of swift {command} from ms-swift, once for this version ...", file=sys.stderr)
    with contextlib.redirect_stdout(sys.stderr):
        import swift.arguments
        from swift.utils.utils import _patch_get_type_hints
        from transformers import HfArgumentParser

        with _patch_get_type_hints():
            parser = HfArgumentParser([getattr(swift.arguments, ARGUMENT_CLASSES[command])])
    kinds = {int: "int", float: "float", str: "str"}
    table = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        if isinstance(action, argparse._StoreFalseAction):
            kind = "false"
        elif action.choices is not None:
            kind = "choice"
        elif getattr(action.type, "__name__", "") == "string_to_bool":
            kind = "bool"
        else:  # dict, Path, DebugOption ...: swift reads them from text, and so are they kept here
            kind = next((name for made, name in kinds.items() if action.type is made), "str")
        table.append(
            {
                "flags": action.option_strings,
                "name": action.dest,
                "kind": kind,
                "nargs": action.nargs if isinstance(action.nargs, str) else None,
                "choices": list(action.choices) if action.choices is not None else None,
                "default": action.default,
            }
        )
    return table


def _table_path(command: str) -> Path:
    try:
        versions = [f"{name}={importlib.metadata.version(name)}" for name in KEYED_BY]
    except importlib.metadata.PackageNotFoundError as missing:
        raise SwiftArgsError(
            f"{missing.name} is not installed for {sys.executable}: run `make setup`, or point PLANNER_PYTHON at "
            "the Python of an environment that holds ms-swift"
        ) from None
    key = "|".join([*versions, platform.python_version(), str(TABLE_FORMAT)])
    return CACHE_DIR / f"swift-{command}-options-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


@lru_cache(maxsize=4)
def options(command: str) -> tuple[Option, ...]:
    """The options of a swift command, from the cache where this version has been read before.

    Raises SwiftArgsError when ms-swift is not installed.
    """
    path = _table_path(command)
    if path.is_file():
        table = json.loads(path.read_text(encoding="utf-8"))
    else:
        table = _read_options_from_swift(command)
        write_atomically(path, json.dumps(table, ensure_ascii=False, indent=0))
    return tuple(
        Option(
            flags=tuple(row["flags"]),
            name=row["name"],
            kind=row["kind"],
            nargs=row["nargs"],
            choices=tuple(row["choices"]) if row["choices"] is not None else None,
            default=row["default"],
        )
        for row in table
    )


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
    if option.kind == "false":
        parser.add_argument(*option.flags, dest=option.name, action="store_false", default=argparse.SUPPRESS)
        return
    settings: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS, "nargs": option.nargs}
    if option.kind == "choice":
        by_text = {str(choice): choice for choice in option.choices or ()}
        settings["type"] = lambda text: by_text.get(text, text)
        settings["choices"] = option.choices
    else:
        settings["type"] = {"int": int, "float": float, "bool": _truth, "str": str}[option.kind]
    if option.kind == "bool" and option.nargs == "?":
        settings["const"] = True
    parser.add_argument(*option.flags, **settings)


def _no_such_flag(command: str, token: str, known: Sequence[Option]) -> str:
    if not token.startswith("-"):
        hint = (
            "swift reads a config file only as its first argument; give flags"
            if token.endswith((".yaml", ".yml", ".json"))
            else "every value follows its --flag"
        )
        return f"swift {command} has no place for {token!r}: {hint}"
    name = token.split("=", 1)[0]
    near = difflib.get_close_matches(name.replace("-", "_").lstrip("_"), [option.name for option in known], n=1)
    return f"swift {command} has no option {name}" + (f": did you mean --{near[0]}?" if near else "")


def parse(command: str, argv: Sequence[str]) -> SwiftArgs:
    """The arguments swift will run with.

    Args:
        command: rlhf, sft, rollout or deploy.
        argv: what follows `swift <command>`, in order; the last of repeated options wins.

    Raises SwiftArgsError where swift itself would refuse the line.

    >>> parse("rlhf", ["--beta", "0.1", "--beta=0"])["beta"]      # doctest: +SKIP
    0.0
    """
    known = options(command)
    parser = _Parser(prog=f"swift {command}", add_help=False)
    for option in known:
        _add(parser, option)
    namespace, rest = parser.parse_known_args(list(argv))
    if rest:
        raise SwiftArgsError(_no_such_flag(command, rest[0], known))
    line = vars(namespace)
    defaults = {option.name: option.default for option in known if option.kind != "false"}
    return SwiftArgs(command, {**defaults, **line}, frozenset(line))


def without_password(value: str) -> str:
    """A value that may hold a URL, without that URL's user and password.

    >>> without_password("--vllm_server_base_url=http://bob:secret@box2:8000"), without_password("org/data@main")
    ('--vllm_server_base_url=http://box2:8000', 'org/data@main')
    """
    return public_url(value) if "://" in value and "@" in value else value


def mask_secrets(command: str, argv: Sequence[str]) -> list[str]:
    """`argv` without the values of secret options (tokens, keys) and passwords in URLs, for logs and manifests."""
    names = {option.name for option in options(command)}
    secrets = {name for name in names if SECRET_FLAG.search(name)}
    masked, hide = [], False
    for token in argv:
        flag, has_value, _ = token.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        is_secret = (
            flag.startswith("--")
            and bool(name)
            and (name in secrets or (name not in names and any(secret.startswith(name) for secret in secrets)))
        )
        if is_secret:
            masked.append(f"{flag}={MASK}" if has_value else token)
        else:
            masked.append(MASK if hide else without_password(token))
        hide = is_secret and not has_value
    return masked


def _line(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python -m scripts.train.swift_args rlhf --print beta output_dir -- --beta=0.01\n"
        "prints one value a line, empty where it is unset",
    )
    parser.add_argument("command", choices=sorted(ARGUMENT_CLASSES), help="swift's command")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--print", nargs="+", metavar="NAME", help="effective values, ms-swift's defaults included")
    what.add_argument("--given", nargs="+", metavar="NAME", help="values that the line itself gives, else empty")
    what.add_argument("--quote", action="store_true", help="the line, quoted for a shell, secrets masked")
    own, line = split_at_dashes(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(own)
    try:
        if args.quote:
            print(shlex.join(mask_secrets(args.command, line)))
            return 0
        parsed = parse(args.command, line)
        for name in args.print or args.given:
            value = parsed[name] if args.print or name in parsed.given else None
            print(os.path.expanduser(value) if name == "output_dir" and value else _line(value))  # as swift does
    except SwiftArgsError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    return 0


def split_at_dashes(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and after the first `--`: a script's own arguments and the line it judges."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:cut]), list(argv[cut + 1 :])


if __name__ == "__main__":
    sys.exit(main())
