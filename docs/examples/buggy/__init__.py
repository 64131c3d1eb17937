"""Twenty programs with one bug each, and their mended twins, for ``docs/testing-your-programs.md``.

Each module has the programs ``buggy`` and ``mended``, which differ in the bug alone, and ``check(world, program)``:
it builds a world around one of the two, says what must hold in the end, and runs it. ``shop`` has what they share.
"""
