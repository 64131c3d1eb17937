"""``tidelog mcp``: a server of the Model Context Protocol (MCP), through which agents ask about a cluster.

Start at ``command.py``, which has the options. ``server.py`` lists and calls the tools for the SDK, ``http.py``
serves them over HTTP, and ``calls.py`` connects to the cluster for each call, with the token of its caller.

    tool.py            what a tool is, and all errors of calls
    next_steps.py      next steps that name tools in the place of commands
    answers.py         an answer: the tool's own sentence, and data that is marked as untrusted
    topic_tools.py     topics, and records
    group_tools.py     consumer groups
    cluster_tools.py   status, doctor, why, the past, and who may do what
    write_tools.py     what changes the cluster, with ``--allow-writes`` only

Two rules hold in the whole room. A tool's own sentence has fixed words, numbers and codes only; each name and each
byte that somebody else has chosen is in the data. And a call is made with the rights of its caller, never with more.
Only the command line imports this room; the package ``mcp`` is loaded when the server starts.
"""
