"""The gateway connects clients to the cluster: it routes produced batches, pushes records and enforces rights.

Rooms, from the top down; each imports only what is below it:

    server            starting and listening
    observability     metrics and health
    clients           links of clients: coming in, quotas, being let go
    requests, audit   requests that take a while; the audit topic
    shell             links to the other services, the turn that sends, timers
    produce, consume  produced batches; subscriptions and reads
    rights            who a client is and what it may do
    limits            what each principal may have, and how shared bounds are shared

Start reading at ``shell.py`` (links in and out), ``produce/router.py`` (produced batches),
``consume/subscriptions.py`` (pushed records), ``clients/connections.py`` and ``rights/authorizer.py`` (who may do
what). The terms are explained in ``docs/vocabulary.md``.
"""
