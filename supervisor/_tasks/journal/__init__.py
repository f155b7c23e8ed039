"""What a directory remembers of the tasks of its runtimes: see `writer`.

``records`` are its lines, ``state`` is what they add up to, and ``writer`` has the file.
"""
