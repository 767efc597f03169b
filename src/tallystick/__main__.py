"""``python -m tallystick`` is the command line."""

import sys

from tallystick.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
