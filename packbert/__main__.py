"""`python -m packbert`: the command `packbert`."""

from packbert.commands import main

raise SystemExit(main())
