"""`python -m worldloop` and the `worldloop` command: hands over to `worldloop.cli`."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from worldloop.cli import app

    app()


if __name__ == "__main__":
    main()
