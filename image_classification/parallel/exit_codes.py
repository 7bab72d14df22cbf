"""How a process ends, for the shell and for the process that watches it; 0: done."""

EXIT_USER_ERROR = 2  # something the user gave is wrong
EXIT_TRAINING_ERROR = 3  # the training cannot go on
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143  # 128 + SIGINT, 128 + SIGTERM
EXIT_PEER_LOST = 4  # another process failed first; its message is the cause


class PeerLost(RuntimeError):
    """Another process died, hangs or left; this one cannot go on."""
