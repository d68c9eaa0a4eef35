"""``python -m lmd`` is ``lmd``."""

from lmd.cli import main

if __name__ == "__main__":
    main()
