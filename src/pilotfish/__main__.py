"""`python -m pilotfish` is `pilotfish`."""

import sys

from pilotfish.cli import main

sys.exit(main())
