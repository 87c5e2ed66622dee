"""`python -m moescale` is `moescale`."""

from moescale.cli import main

if __name__ == "__main__":
    main()
