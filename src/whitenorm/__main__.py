"""``python -m whitenorm``, which torchrun starts."""

import sys

from whitenorm.cli import main

if __name__ == "__main__":
    sys.exit(main())
