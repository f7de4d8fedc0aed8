"""`python -m dsl` is `dsl`."""

from dsl.cli import main

main()
