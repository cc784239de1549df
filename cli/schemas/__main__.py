"""`python -m kvtune.cli.schemas`: writes the shipped schemas anew from the structs."""

from kvtune.cli.schemas import main

main()
