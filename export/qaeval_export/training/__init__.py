"""Training jobs: labeled text -> a small adapter and a merged model folder.

Runs as ``python -m qaeval_export.training``, in a process of its own; nobody imports it.
"""
