"""What may be wrong with a ledger as a whole; whoever asks for a GPU then gets none, for now."""


class LedgerAwayError(Exception):
    """The ledger cannot be read or written now. Nothing was written."""


class NewerSchemaError(LedgerAwayError):
    """The ledger was written by a newer gpuspawner, or is none: going on could damage it."""


class OlderSchemaError(LedgerAwayError):
    """The ledger is older than this gpuspawner, and may not be upgraded by who only reads."""


class DamagedError(LedgerAwayError):
    """The ledger's file is damaged, or no database. It is left as it is."""
