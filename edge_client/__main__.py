"""`python -m edge_client`: the `spry` command, wherever its script may be. A service starts it so."""

from edge_client.commands.cli import main

if __name__ == "__main__":
    main()
