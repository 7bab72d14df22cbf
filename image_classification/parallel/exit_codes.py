"""How a process of several ends, for the one that watches it."""

EXIT_PEER_LOST = 4  # another process failed first; its message is the cause


class PeerLost(RuntimeError):
    """Another process died, hangs or left; this one cannot go on."""
