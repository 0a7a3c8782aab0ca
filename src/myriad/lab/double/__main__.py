"""`python -m myriad.lab.double`: the device plugin double."""

import sys

from myriad.lab.double.plugin import main

sys.exit(main())
