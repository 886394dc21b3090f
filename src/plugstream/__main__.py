"""`python -m plugstream` is the same as `plugstream`."""

import sys

from plugstream.cli import main

sys.exit(main())
