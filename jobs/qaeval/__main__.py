"""``python -m qaeval <verb>``, as the command ``qaeval``."""

from qaeval.cli import main

main()
