"""`python -m flint`."""

from flint.cli import main

if __name__ == "__main__":
    main()
