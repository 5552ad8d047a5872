import sys

from archcalc.cli import main

sys.exit(main())
