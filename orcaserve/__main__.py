"""`python -m orcaserve`: the same as `orcaserve`."""

import sys

from orcaserve.cli.main import main

sys.exit(main())
