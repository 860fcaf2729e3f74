"""``python -m fusioncc`` is the ``fusioncc`` command."""

from fusioncc.cli import main

main()
