"""`python -m hostile`."""

import sys

from hostile.runner import main

sys.exit(main())
