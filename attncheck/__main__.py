"""`python -m attncheck`: the console script, where it is not on the path."""

from attncheck.cli import main

if __name__ == "__main__":
    main()
