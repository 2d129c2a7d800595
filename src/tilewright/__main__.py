"""`python -m tilewright` is the command line."""

from tilewright.cli import main

if __name__ == "__main__":
    main(prog_name="tilewright")
