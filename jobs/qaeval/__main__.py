"""``python -m qaeval <verb>``, as the command ``qaeval``."""

from qaeval_core.distribution import main

main()
