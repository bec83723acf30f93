"""`nmtkit compare`."""
def command() -> None:
    """Runs. Example: nmtkit compare"""
