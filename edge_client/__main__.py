"""`python -m edge_client`: the `spry` command, wherever its script may be. A service starts it so."""

from .cli import main

if __name__ == "__main__":
    main()
