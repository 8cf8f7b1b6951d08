"""`python -m app.keys create|list|revoke`: API keys for the service that DATABASE_URL points to."""

import argparse
import sys

from app.auth import DEFAULT_PROJECT, SCOPES, create_key, list_keys, revoke_key
from app.db.engine import transaction
from app.errors import SpicaError


def create(arguments: argparse.Namespace) -> None:
    """Make a key and print it, once."""
    with transaction() as db:
        row, text = create_key(db, arguments.project, arguments.name, arguments.scope or ["read", "submit"])
    print(
        f"Key {row.id} for project {row.project}, scopes {', '.join(row.scopes)}. It is shown only now:",
        file=sys.stderr,
    )
    print(text)


def show(_arguments: argparse.Namespace) -> None:
    """Print all keys without their secrets."""
    with transaction() as db:
        for row in list_keys(db):
            state = f"revoked {row.revoked_at:%Y-%m-%d}" if row.revoked_at else "valid"
            print(
                f"{row.id}  {row.project:20}  {','.join(row.scopes):18}  {row.created_at:%Y-%m-%d}  {state:18}",
                row.name,
            )


def revoke(arguments: argparse.Namespace) -> None:
    """Make a key worthless."""
    with transaction() as db:
        revoke_key(db, arguments.id)
    print(f"Key {arguments.id} is revoked.", file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m app.keys", description=__doc__)
    commands = top.add_subparsers(required=True)
    making = commands.add_parser("create", help="make a key and show it once")
    making.add_argument("--project", default=DEFAULT_PROJECT)
    making.add_argument("--name", default="", help="a note on who holds it")
    making.add_argument(
        "--scope", action="append", choices=SCOPES, help="may be repeated; read and submit if none is given"
    )
    making.set_defaults(run=create)
    commands.add_parser("list", help="show all keys without their secrets").set_defaults(run=show)
    revoking = commands.add_parser("revoke", help="make a key worthless")
    revoking.add_argument("id")
    revoking.set_defaults(run=revoke)
    return top


def main(words: list[str] | None = None) -> int:
    """Run one command; 0, or 1 with the reason on standard error."""
    arguments = parser().parse_args(words)
    try:
        arguments.run(arguments)
    except SpicaError as error:
        print(error.detail, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
