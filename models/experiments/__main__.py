import sys

from models.experiments.cli import main

sys.exit(main())
