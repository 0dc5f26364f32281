"""``python -m gpuspawner``: the command line."""

from gpuspawner.cli.main import main

if __name__ == "__main__":
    main()
