"""What a user did wrong, as one line."""


class UserError(ValueError):
    """What a user typed or gave is wrong; the text is one line that names it and says what is allowed."""
