"""``python -m whitenorm_lab``, which torchrun starts."""

import sys

from whitenorm_lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
