"""Bytes from outside: opened, downloaded, unpacked and unpickled, whoever wrote them. Imports no Paddle.

Each reader here keeps to a budget of memory and work that follows from the size of the file, runs nothing of what it
reads, and raises nothing but :class:`UserError`.
"""
